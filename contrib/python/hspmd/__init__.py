# SPDX-License-Identifier: Apache-2.0
"""PyTorch training that goes on when nodes come and go: see doc/trainers.md.

    el = hspmd.Elastic(model, optimizer, batch=64, micro=4)
    for x, y in el.batches(dataset):
        loss = F.cross_entropy(model(x), y)
        el.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

Without `hspmd run` the same loop trains in one process.

hspmd.graph is something else, without PyTorch: nets of one's own by libhspmd.
"""
from hspmd.control import local_rank

__all__ = ["Elastic", "device", "local_rank"]


def __getattr__(name):
    # Not before it is used: the modules below need torch.
    if name in ("Elastic", "device"):
        from hspmd import elastic

        return getattr(elastic, name)
    raise AttributeError(name)
