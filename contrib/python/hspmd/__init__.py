# SPDX-License-Identifier: Apache-2.0
"""PyTorch training that goes on when nodes come and go: see doc/trainers.md.

    el = hspmd.Elastic(model, optimizer, batch=64, micro=4)
    for x, y in el.batches(dataset):
        loss = F.cross_entropy(model(x), y)
        el.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

Models that are divided among ranks, and loops that use torch.distributed, are made anew whenever the ranks change:

    @hspmd.elastic
    def main(run): ...

Without `hspmd run` the same loop trains in one process.

hspmd.load(folder) reads the newest checkpoint, for PyTorch without hspmd.

hspmd.graph is something else, without PyTorch: nets of one's own by libhspmd.
"""
from hspmd.control import local_rank

__all__ = ["Elastic", "ddp", "device", "elastic", "load", "local_rank"]
_HOMES = {"Elastic": "replicated", "ddp": "sharded", "device": "member", "elastic": "sharded", "load": "export"}


def __getattr__(name):
    # Not before it is used: the modules below need torch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module("hspmd." + _HOMES[name]), name)
    raise AttributeError(name)
