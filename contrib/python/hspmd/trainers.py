# SPDX-License-Identifier: Apache-2.0
"""What the trainers of other libraries need to believe that they are alone."""
import os

import torch

from hspmd import control, member


def see_one_gpu():
    """Such a trainer would take all GPUs that this process sees."""
    names = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n]
    if member.connected() and len(names) > control.local_rank() and not torch.cuda.is_initialized():
        os.environ["CUDA_VISIBLE_DEVICES"] = names[control.local_rank()]
        control.set_local_rank(0)


class Idle:
    """A scheduler that a trainer may step in vain."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def __getattr__(self, name):
        return getattr(self._scheduler, name)

    def step(self, *_, **__):
        pass
