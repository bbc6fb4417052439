# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/guests gives to torchrun: the net of contrib/examples/torch/elastic.py in DistributedDataParallel, with a snapshot every
5 steps; with --fsdp, divided by FSDP2 as that of fsdp2.py."""
import time

began = time.time()  # whatever is imported from here on is the script's own time

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict  # noqa: E402

parser = argparse.ArgumentParser()
for name, value in (("steps", 0), ("width", 0), ("layers", 0), ("batch", 12), ("length", 16)):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--told")
parser.add_argument("--snapshot")
parser.add_argument("--fsdp", action="store_true")
options = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
generation = int(os.environ.get("HSPMD_GENERATION", os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)))

torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, 0.1, "gelu", batch_first=True, norm_first=True)
body = torch.nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
net = torch.nn.Sequential(torch.nn.Embedding(64, options.width), body, torch.nn.Linear(options.width, 64))
if options.fsdp:
    from torch.distributed.fsdp import fully_shard

    for part in (*body.layers, net):
        fully_shard(part)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
step, whole = 0, StateDictOptions(full_state_dict=True, cpu_offload=True)
if os.path.exists(options.snapshot):
    saved = torch.load(options.snapshot)
    if options.fsdp:
        set_state_dict(net, optimizer, model_state_dict=saved["net"], optim_state_dict=saved["optimizer"], options=whole)
    else:
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
model = net if options.fsdp else torch.nn.parallel.DistributedDataParallel(net)
while step < options.steps:
    x = (torch.arange(options.batch // world * options.length).view(-1, options.length) + step) % 64
    loss = F.cross_entropy(model(x).flatten(0, 1), ((x + 1) % 64).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        with open(options.told, "a") as log:
            told = {"generation": generation, "step": step, "loss": loss.item(), "time": time.time(), "began": began}
            log.write(json.dumps(told) + "\n")
    step += 1
    if step % 5:
        continue
    state = get_state_dict(net, optimizer, options=whole) if options.fsdp else (net.state_dict(), optimizer.state_dict())
    if rank == 0:
        torch.save({"net": state[0], "optimizer": state[1], "step": step}, options.snapshot + ".tmp")
        os.replace(options.snapshot + ".tmp", options.snapshot)
