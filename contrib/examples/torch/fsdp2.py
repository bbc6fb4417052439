#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that is divided among the ranks by FSDP2. main() is called again in the same processes whenever the ranks change, and what each
rank has of the state goes to those that have it then:

    python fsdp2.py --steps 100
    hspmd run --local 3 -- python fsdp2.py --steps 100

With --copies 2 the model is divided among half of the ranks, twice (HSDP), with --tensor 2 each layer's MLP among pairs of ranks (tensor
parallelism), if the number of ranks is even.

Data are drawn from a seed. Dropout is on: losses are those of one process nevertheless."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hspmd

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--step-s", type=float, default=0, help="rest this long after each step")
parser.add_argument("--save-s", type=float, default=600, help="save this often")
parser.add_argument("--ddp", action="store_true", help="DistributedDataParallel instead: every rank has the whole model")
parser.add_argument("--copies", type=int, default=1)
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--dropout", type=float, default=0.1)
options = parser.parse_args()
torch.set_num_threads(1)

WORDS = 64


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, options.width)
        width, drop = options.width, options.dropout
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, drop, "gelu", batch_first=True, norm_first=True)
            for _ in range(options.layers)
        )
        self.head = torch.nn.Linear(options.width, WORDS)

    def forward(self, x):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(x)


class Text(torch.utils.data.Dataset):
    """Words that follow one another by a rule."""

    def __len__(self):
        return 10000

    def __getitem__(self, i):
        t = (torch.arange(options.length + 1) * (i % 7 + 1) + i) % WORDS
        return t[:-1], t[1:]


def meshes(run):
    """The mesh of FSDP2, and those of the samples and of tensor parallelism; None: all ranks, none. Names are new for each generation."""
    inner = max(options.copies, options.tensor)
    if inner == 1 or run.size % inner:
        return run.mesh, None, None
    outer = run.size // inner
    if options.copies > 1:
        names = f"copies{run.generation}", f"parts{run.generation}"
        return init_device_mesh(run.device.type, (inner, outer), mesh_dim_names=names), None, None
    samples, tensor = f"samples{run.generation}", f"tensor{run.generation}"
    both = init_device_mesh(run.device.type, (outer, inner), mesh_dim_names=(samples, tensor))
    return both[samples], both[samples], both[tensor]


def divided(model, mesh, tensor):
    for layer in model.layers:
        if tensor is not None:
            parallelize_module(layer, tensor, {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@hspmd.elastic(save_s=options.save_s)
def main(run):
    torch.manual_seed(1)
    model = run.make(Net).to(run.device)
    mesh, samples, tensor = meshes(run)
    model = hspmd.ddp(model) if options.ddp else divided(model, mesh, tensor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=None if tensor is None else False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    run.hold(model, optimizer, scheduler=scheduler, clip=1.0)
    shown = -1
    for x, y in run.batches(Text(), batch=options.batch, micro=options.micro, steps=options.steps, mesh=samples):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if run.step > shown and run.loss is not None:
            shown = run.step
            if run.rank == 0:
                print(f"step {run.step - 1}: loss {run.loss:.7f} on {run.size} ranks", flush=True)
            time.sleep(options.step_s)


main()
