#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A script for torchrun as many people have one: DistributedDataParallel, a snapshot every few steps, and nothing of hspmd in it.

    torchrun --standalone --nproc-per-node 2 train.py --snapshot snapshot.pt
    hspmd run --local 2 -- torchrun train.py --snapshot '{checkpoint}/snapshot.pt' --batch '{64/world}'
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--batch", type=int, default=16, help="samples of a step per rank")
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--snapshot", default="snapshot.pt")
options = parser.parse_args()

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 1)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
step = 0
if os.path.exists(options.snapshot):
    snapshot = torch.load(options.snapshot, map_location=device)
    net.load_state_dict(snapshot["net"])
    optimizer.load_state_dict(snapshot["optimizer"])
    step = snapshot["step"]
    if rank == 0:
        print(f"{world} ranks go on at step {step}", flush=True)
model = DistributedDataParallel(net, device_ids=[local] if cuda else None)

while step < options.steps:
    # Samples by their place in the step's batch: the same ones however many ranks there are.
    numbers = torch.arange(rank * options.batch, (rank + 1) * options.batch) + step * options.batch * world
    x = torch.sin(numbers[:, None] * torch.arange(1, 33) * 0.1).to(device)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0 and (step % options.save_every == 0 or step == options.steps):
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, options.snapshot + ".tmp")
        os.replace(options.snapshot + ".tmp", options.snapshot)
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
