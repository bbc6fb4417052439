#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operator's result and gradients against PyTorch's autograd. Skipped (exit 77) where Python has no torch."""
import json
import os
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    system = "/usr/bin/python3"  # which distributions package torch for; another Python may come first in PATH
    if os.path.exists(system) and os.environ.get("HSPMD_TORCH_TRIED") is None:
        os.environ["HSPMD_TORCH_TRIED"] = "1"
        os.execv(system, [system] + sys.argv)
    print("no torch for", sys.executable, "- operators are not compared with PyTorch")
    sys.exit(77)

TOLERANCE = {"F32": 1e-5, "F64": 1e-10}


def rope(x, head_dim, theta=10000.0):
    b, t, width = x.shape
    x = x.view(b, t, width // head_dim, head_dim)
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = (torch.arange(t, dtype=torch.float64)[:, None] * frequency)[None, :, None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).view(b, t, width)


def attention(q, k, v, head_dim, scale, window=0, segments=None):
    b, t, width = q.shape
    heads, kv = width // head_dim, k.shape[2] // head_dim
    q = q.view(b, t, heads, head_dim).transpose(1, 2)
    k, v = (x.view(b, t, kv, head_dim).transpose(1, 2).repeat_interleave(heads // kv, 1) for x in (k, v))
    distance = torch.arange(t)[:, None] - torch.arange(t)[None]
    hidden = (distance < 0) | ((distance >= window) if window else torch.zeros_like(distance, dtype=torch.bool))
    hidden = hidden[None].expand(b, t, t)
    if segments is not None:
        hidden = hidden | (segments[:, :, None] != segments[:, None, :])
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden[:, None], float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, width)


def route(logits, k, scale):
    """Weights, choice and the balance loss: per sample, E * tokens sent to an expert * mean probability of it."""
    experts = logits.shape[-1]
    weights, choice = torch.topk(logits, k, -1)
    load = F.one_hot(choice, experts).sum((1, 2)).to(logits.dtype)
    balance = scale * experts * (load * logits.softmax(-1).mean(1)).sum()
    return weights.softmax(-1), choice, balance


def experts(x, weights, choice, gate, up, down):
    y = torch.zeros_like(x)
    for e in range(gate.shape[0]):
        share = (weights * (choice == e)).sum(-1, keepdim=True)
        y = y + share * ((F.silu(x @ gate[e].T) * (x @ up[e].T)) @ down[e].T)
    return y


def mixture(i):
    weights, choice, balance = route(i["logits"], 2, 0.7)
    return experts(i["x"], weights, choice, i["gate"], i["up"], i["down"]), balance


def loss(i):
    return None, 0.3 * F.cross_entropy(i["logits"].flatten(0, 1), i["targets"].flatten(), ignore_index=-1, reduction="sum")


def routed(i):
    weights, _, balance = route(i["logits"], 2, 0.7)
    return weights, balance


# Case -> (result that meets the seed, or None; loss beside it).
CASES = {
    "embed": lambda i: (F.embedding(i["tokens"], i["table"]), 0),
    "position": lambda i: (i["x"] + i["table"][: i["x"].shape[1]], 0),
    "layernorm": lambda i: (F.layer_norm(i["x"], i["gain"].shape, i["gain"], i["bias"], 1e-5), 0),
    "rmsnorm": lambda i: (i["gain"] * i["x"] * torch.rsqrt(i["x"].pow(2).mean(-1, keepdim=True) + 1e-5), 0),
    "linear": lambda i: (F.linear(i["x"], i["w"]), 0),
    "linear with bias": lambda i: (F.linear(i["x"], i["w"], i["bias"]), 0),
    "linear transposed": lambda i: (torch.einsum("btk,kcn->btcn", i["x"], i["w"]) + i["bias"], 0),
    "linear large": lambda i: (F.linear(i["x"], i["w"], i["bias"]), 0),
    "attention": lambda i: (attention(i["q"], i["k"], i["v"], 6, 0.4), 0),
    "attention window": lambda i: (attention(i["q"], i["k"], i["v"], 5, 0.4, window=40), 0),
    "attention segments": lambda i: (attention(i["q"], i["k"], i["v"], 4, 0.4, segments=i["segments"]), 0),
    "attention packed": lambda i: (attention(*i["qkv"].unbind(2), 5, 0.4), 0),
    "attention unpacked": lambda i: (attention(*i["qkv"].unbind(2), 5, 0.4), 0),
    "rope": lambda i: (rope(i["x"], 6), 0),
    "gelu": lambda i: (F.gelu(i["x"], approximate="tanh"), 0),
    "gelu exact": lambda i: (F.gelu(i["x"]), 0),
    "swiglu": lambda i: (F.silu(i["gate"]) * i["up"], 0),
    "add": lambda i: (i["a"] + i["b"], 0),
    "route": routed,
    "experts": mixture,
    "loss": loss,
    "loss in 2 parts": loss,
}


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
