#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""A small GPT of Megatron Core, trained as Megatron-LM's pretrain_gpt.py trains: by its options and torchrun's environment, from and to
its folder of checkpoints, with its end after a signal. Nothing of hspmd is in it but the lines that tell steps.

    hspmd run --local 3 -- torchrun megatron_gpt.py --save '{checkpoint}' --load '{checkpoint}' --micro-batch-size '{2+0*(12/world)}'
    hspmd run --local 4 -- torchrun megatron_gpt.py --save '{checkpoint}' --load '{checkpoint}' \
        --tensor-model-parallel-size '{2+0*(world/2)}'

The expressions let hspmd choose such numbers of ranks only with which Megatron can divide the batch, or its model.

Needs megatron-core. It also runs without a GPU: Megatron's own optimizer and DistributedDataParallel do not, and are not used here."""
import argparse
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from megatron.core import num_microbatches_calculator, parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import initialize_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
parser.add_argument("--num-layers", type=int, default=2)
parser.add_argument("--hidden-size", type=int, default=32)
parser.add_argument("--num-attention-heads", type=int, default=4)
parser.add_argument("--seq-length", type=int, default=16)
parser.add_argument("--micro-batch-size", type=int, default=2)
parser.add_argument("--global-batch-size", type=int, default=24)
parser.add_argument("--train-iters", type=int, default=200)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--save")
parser.add_argument("--load")
parser.add_argument("--save-interval", type=int, default=20)
parser.add_argument("--step-s", type=float, default=0, help="rest this long after each iteration")
options = parser.parse_args()

WORDS = 64

told = False


def on_term(number, frame):
    global told
    told = True


signal.signal(signal.SIGTERM, on_term)
torch.set_num_threads(1)
cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
parallel_state.initialize_model_parallel(options.tensor_model_parallel_size, create_gloo_process_groups=cuda)
torch.manual_seed(options.seed)
if cuda:
    model_parallel_cuda_manual_seed(options.seed)
else:
    torch.cuda.current_device = lambda: device  # for which Megatron asks where it makes a buffer
    initialize_rng_tracker(inference_rng_tracker=True)  # the other one keeps states of a GPU
data_rank, data_ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
num_microbatches_calculator.init_num_microbatches_calculator(
    dist.get_rank(), None, options.global_batch_size, options.micro_batch_size, data_ranks
)

config = TransformerConfig(
    num_layers=options.num_layers,
    hidden_size=options.hidden_size,
    num_attention_heads=options.num_attention_heads,
    tensor_model_parallel_size=options.tensor_model_parallel_size,
    use_cpu_initialization=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    gradient_accumulation_fusion=False,
)
model = GPTModel(config, get_gpt_layer_local_spec(), WORDS, options.seq_length).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)


def file_of(folder, iteration):
    place = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    return os.path.join(folder, f"iter_{iteration:07d}", place, "model_optim_rng.pt")


def tracker(folder):
    return os.path.join(folder, "latest_checkpointed_iteration.txt")


def save(iteration, consumed):
    path = file_of(options.save, iteration)
    if data_rank == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
        torch.save(state | {"args": argparse.Namespace(consumed_train_samples=consumed)}, path)
    dist.barrier()
    if dist.get_rank() == 0:
        with open(tracker(options.save) + ".tmp", "w") as file:
            file.write(str(iteration))
        os.replace(tracker(options.save) + ".tmp", tracker(options.save))
    dist.barrier()


iteration = consumed = 0
if options.load and os.path.exists(tracker(options.load)):
    with open(tracker(options.load)) as file:
        iteration = int(file.read())
    saved = torch.load(file_of(options.load, iteration), map_location=device, weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    consumed = saved["args"].consumed_train_samples
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks go on at iteration {iteration}", flush=True)

positions = torch.arange(options.seq_length, device=device)
mask = torch.ones(options.seq_length, options.seq_length, dtype=torch.bool, device=device).triu(1)[None, None]
steps = os.fdopen(int(os.environ["HSPMD_FD"]), "w", buffering=1) if "HSPMD_FD" in os.environ else None
while iteration < options.train_iters:
    optimizer.zero_grad()
    micro_batches = num_microbatches_calculator.get_num_microbatches()
    total = torch.zeros((), device=device)
    for number in range(micro_batches):
        first = consumed + (number * data_ranks + data_rank) * options.micro_batch_size
        samples = torch.arange(first, first + options.micro_batch_size, device=device)[:, None]
        words = (torch.arange(options.seq_length + 1, device=device) * (samples % 7 + 1) + samples) % WORDS
        loss = model(words[:, :-1], positions.expand(len(words), -1), mask, labels=words[:, 1:]).mean() / micro_batches / data_ranks
        loss.backward()
        total += loss.detach()
    sums = torch.cat([p.grad.reshape(-1) for p in model.parameters()] + [total[None]])
    dist.all_reduce(sums, group=parallel_state.get_data_parallel_group())
    for p, part in zip(model.parameters(), sums[:-1].split([p.numel() for p in model.parameters()])):
        p.grad.copy_(part.view_as(p.grad))
    optimizer.step()
    if steps and dist.get_rank() == 0:
        tokens = options.global_batch_size * options.seq_length
        steps.write(json.dumps({"step": iteration, "loss": sums[-1].item(), "tokens": tokens}) + "\n")
    iteration += 1
    consumed += options.global_batch_size
    ends = torch.tensor(float(told), device=device)
    dist.all_reduce(ends)
    if options.save and (ends or iteration % options.save_interval == 0 or iteration == options.train_iters):
        save(iteration, consumed)
    if ends:
        sys.exit(0)  # as Megatron-LM does with --exit-signal-handler
    time.sleep(options.step_s)
dist.destroy_process_group()
