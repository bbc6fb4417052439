#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small language model, trained by the loop of one process, on as many ranks as there are:

    python elastic.py --steps 100
    hspmd run --local 3 -- python elastic.py --steps 100

Data are drawn from a seed. Dropout is on: losses are those of one process nevertheless."""
import argparse
import time

import hspmd
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--save-s", type=float, default=600, help="seconds between checkpoints")
parser.add_argument("--step-s", type=float, default=0, help="rest this long after each step")
options = parser.parse_args()
torch.set_num_threads(1)

WORDS = 64


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, options.width)
        layer = torch.nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = torch.nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(options.width, WORDS)

    def forward(self, x):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.body(self.embedding(x), mask, is_causal=True))


class Text(torch.utils.data.Dataset):
    """Words that follow one another by a rule."""

    def __len__(self):
        return 10000

    def __getitem__(self, i):
        t = (torch.arange(options.length + 1) * (i % 7 + 1) + i) % WORDS
        return t[:-1], t[1:]


torch.manual_seed(1)
model = Net().to(hspmd.device())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

el = hspmd.Elastic(model, optimizer, batch=options.batch, micro=options.micro, scheduler=scheduler, clip=1.0, save_s=options.save_s)
shown = -1
for x, y in el.batches(Text(), steps=options.steps):
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    el.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if el.step > shown and el.loss is not None:
        shown = el.step
        if el.rank == 0:
            print(f"step {el.step - 1}: loss {el.loss:.7f} on {el.size} ranks {el.shares}", flush=True)
        time.sleep(options.step_s)
