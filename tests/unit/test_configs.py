#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits, loss and gradients of models with configurations drawn at random (tests/golden/draw.py), against Hugging Face's transformers.
HSPMD_LONG=1 draws a dozen of each model type, else it is one of every third type. HSPMD_DRAW chooses which. Skipped (exit 77) where Python
has no transformers."""
import os
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "../golden")]
from other_python import go_on_elsewhere  # noqa: E402

try:
    import torch
    import transformers
except ImportError:
    go_on_elsewhere("drawn configurations are not compared with transformers: there is none")

import draw  # noqa: E402
import formula  # noqa: E402
import models  # noqa: E402

NUDGED = 4  # models with weights a rounding away, which show how much a drawn model makes of rounding
DRAW = int(os.environ.get("HSPMD_DRAW") or 0)
LONG = os.environ.get("HSPMD_LONG") == "1"


def drawn():
    """(type, number) of each configuration."""
    kinds = list(draw.KEYS)
    return [(kind, DRAW + i) for kind in kinds for i in range(12)] if LONG else [(kind, DRAW) for kind in kinds[DRAW % 3 :: 3]]


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    published = {models.language_part(name)["model_type"] for name in models.MODELS}
    assert published == set(draw.KEYS), f"types of tests/golden/models.py and draw.py differ: {published ^ set(draw.KEYS)}"
    with tempfile.TemporaryDirectory() as folder:
        for kind, number in drawn():
            name = f"{kind}-{number}"
            models.MODELS[name] = draw.config_of(random.Random(name), kind)
            formula.write(f"{folder}/model-{name}.json", models.one_step(name, nudged=NUDGED), 10)
        program = os.path.join(os.environ.get("builddir", "."), "tests/unit/test_golden")
        run = subprocess.run([program], env=dict(os.environ, HSPMD_GOLDEN=folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True)
    if run.returncode:
        for line in run.stdout.splitlines():
            name = line.split(" model-")[-1].removesuffix(".json")
            print(line, models.MODELS[name] if "FAILED" in line and name in models.MODELS else "")
        sys.exit(1)
    print(f"{len(drawn())} configurations agree with transformers {transformers.__version__} (HSPMD_DRAW={DRAW})")


main()
