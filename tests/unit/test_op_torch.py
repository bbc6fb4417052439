#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator's result and gradients against PyTorch's autograd. Skipped (exit 77) where Python has no torch."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from other_python import go_on_elsewhere  # noqa: E402

try:
    import torch
except ImportError:
    go_on_elsewhere("operators are not compared with PyTorch: there is none")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden"))
from operators import CASES  # noqa: E402

TOLERANCE = {"F32": 1e-5, "F64": 1e-10}


def tensor(value, dtype):
    return torch.tensor(value["data"], dtype=dtype).view(value["shape"])


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / (1 + theirs.abs().max())).item()


def check(line):
    real = {"F32": torch.float32, "F64": torch.float64}[line["type"]]
    inputs = {}
    for name, value in line["inputs"].items():
        whole = all(isinstance(x, int) for x in value["data"])
        inputs[name] = tensor(value, torch.int64 if whole else real)
        if name in line["grads"]:
            inputs[name].requires_grad_()
    result, total = CASES[line["case"]](inputs)
    outputs = [tensor(value, torch.float64) for value in line["outputs"].values()]
    tolerance = TOLERANCE[line["type"]]
    if result is not None:
        if not any(o.shape == result.shape and difference(o, result.double()) <= tolerance for o in outputs):
            sys.exit(f"{line['case']} {line['type']}: no output is what PyTorch computes")
        total = total + (result * inputs["seed"]).sum()
    elif not any(difference(o, total.double().view(1)) <= tolerance for o in outputs if o.numel() == 1):
        sys.exit(f"{line['case']} {line['type']}: the loss is not what PyTorch computes")
    total.backward()
    worst = 0
    for name, grad in line["grads"].items():
        off = difference(tensor(grad, torch.float64), inputs[name].grad.double())
        if not off <= tolerance:
            sys.exit(f"{line['case']} {line['type']}: gradient of {name} is off by {off:.3g}")
        worst = max(worst, off)
    return worst


def main():
    program = os.path.join(os.environ.get("builddir", "."), "tests/unit/op_dump")
    dump = subprocess.run([program], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    lines = [json.loads(text) for text in dump.splitlines() if text.startswith("{")]
    assert {line["case"] for line in lines} == set(CASES), "cases of op_dump and of this file differ"
    worst = {kind: max(check(line) for line in lines if line["type"] == kind) for kind in TOLERANCE}
    print(f"{len(CASES)} operators agree with PyTorch {torch.__version__}: largest relative difference {worst}")


main()
