#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training steps of step.c in PyTorch, eager, fp32: torch_step.py CASE STEPS. Prints one line of JSON with the median."""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

CASES = {  # family, layers, width, heads, inner width, vocabulary, length, batch
    "gpt2-11m": ("gpt2", 6, 384, 6, 1536, 256, 256, 16),
    "llama-11m": ("llama", 6, 384, 6, 1024, 256, 256, 16),
    "gpt2-124m": ("gpt2", 12, 768, 12, 3072, 50304, 512, 2),
}


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Block(nn.Module):
    def __init__(self, family, width, heads, inner, length):
        super().__init__()
        self.llama, self.heads = family == "llama", heads
        norm = RMSNorm if self.llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=not self.llama)
        self.out = nn.Linear(width, width, bias=not self.llama)
        self.up = nn.Linear(width, inner * (1 + self.llama), bias=not self.llama)
        self.down = nn.Linear(inner, width, bias=not self.llama)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))
        half = width // heads // 2
        angle = torch.arange(length)[:, None] * (10000 ** (-torch.arange(half) / half))[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def attend(self, x):
        b, t, width = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).split(width, -1))
        if self.llama:
            q, k = self.rotate(q), self.rotate(k)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = ((q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5 + self.mask).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.up(self.norm2(x))
        if self.llama:
            gate, up = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(y, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, family, layers, width, heads, inner, vocab, length):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.position = nn.Embedding(length, width) if family == "gpt2" else None
        self.blocks = nn.Sequential(*[Block(family, width, heads, inner, length) for _ in range(layers)])
        self.norm = nn.LayerNorm(width) if family == "gpt2" else RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if family == "gpt2":
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.position is not None:
            x = x + self.position.weight
        return self.head(self.norm(self.blocks(x)))


def main():
    name, steps = sys.argv[1], int(sys.argv[2])
    *sizes, batch = CASES[name]
    vocab, length = sizes[-2], sizes[-1]
    torch.manual_seed(0)
    model = Model(*sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    tokens, targets = torch.randint(vocab, (batch, length)), torch.randint(vocab, (batch, length))
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - start)
    times = sorted(times[2:])
    median = times[len(times) // 2]
    print(json.dumps({"peer": "torch " + torch.__version__, "case": name, "threads": torch.get_num_threads(), "step_s": round(median, 4),
                      "least_s": round(times[0], 4), "tokens_s": round(batch * length / median)}))


main()
