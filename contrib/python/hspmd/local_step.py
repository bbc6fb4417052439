# SPDX-License-Identifier: Apache-2.0
"""The step of an optimizer that treats each element alone, made with what this rank has of each tensor. With DTensors, PyTorch works out
for each operation and shape what it means for the parts, and does so anew in each generation, whose mesh is another."""
import collections
import functools

import torch
from torch.distributed.tensor import DTensor

from hspmd.shards import as_placed, local

_OF_ELEMENTS = {
    torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam,
    torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
}  # fmt: skip


def local_step(optimizer):
    """What does optimizer.step()'s work: step() itself, if the optimizer is not known to treat each element alone, or if a number that it
    keeps could not be told from the state of a parameter without dimensions."""
    step = optimizer.step
    divided = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, DTensor)]
    if type(optimizer) not in _OF_ELEMENTS or not divided or any(p.dim() == 0 for p in divided):
        return step
    return functools.wraps(step)(lambda *a, **k: _step(optimizer, step, a, k))


def _own(p):
    """This rank's part of a parameter, with its gradient."""
    if not isinstance(p, DTensor):
        return p
    own = torch.nn.Parameter(local(p).detach(), requires_grad=p.requires_grad)
    own.grad = None if p.grad is None else local(p.grad)
    return own


def _one_by_one(group):
    """True: PyTorch would take the tensors of this group one after the other, as the user has left it the choice, and some are DTensors.
    Of plain tensors on a GPU it would take all at once, which needs room for copies of them."""
    left = group.get("foreach", False) is None and not group.get("fused")
    return left and any(isinstance(p, DTensor) for p in group["params"])


@torch.no_grad()
def _step(optimizer, step, arguments, named):
    lists, state = [group["params"] for group in optimizer.param_groups], optimizer.state
    one_by_one = [group for group in optimizer.param_groups if _one_by_one(group)]
    own = {p: _own(p) for params in lists for p in params}
    before = {p: {key: local(value) for key, value in state[p].items()} for p in own if p in state}
    try:
        optimizer.state = collections.defaultdict(dict, {own[p]: dict(values) for p, values in before.items()})
        for group, params in zip(optimizer.param_groups, lists):
            group["params"] = [own[p] for p in params]
        for group in one_by_one:
            group["foreach"] = False
        return step(*arguments, **named)
    finally:
        after, optimizer.state = optimizer.state, state
        for group, params in zip(optimizer.param_groups, lists):
            group["params"] = params
        for group in one_by_one:
            group["foreach"] = None
        for p, part in own.items():
            for key, value in after.get(part, {}).items():
                if key not in before.get(p, {}) or value is not before[p][key]:
                    state[p][key] = as_placed(p, value)
