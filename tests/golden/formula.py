# SPDX-License-Identifier: Apache-2.0
"""The numbers that the generator and the tests both compute (tests/unit/golden.h has the same in C), so that the files hold
results only."""
import json
import math

import numpy
import torch

WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(x):
    """splitmix64's mixing (Steele, Lea, Flood 2014), of integers or of arrays of uint64."""
    whole = isinstance(x, int)
    x = (x + GAMMA) & WORD if whole else x + numpy.uint64(GAMMA)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & WORD if whole else (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
    return x ^ (x >> 31) if whole else x ^ (x >> numpy.uint64(31))


def name_hash(name):
    """FNV-1a."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & WORD
    return h


def bits(name, count):
    """16 bits for each element."""
    with numpy.errstate(over="ignore"):
        start = numpy.uint64(name_hash(name)) + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(GAMMA)
        return (mix(start) >> numpy.uint64(48)).astype(numpy.int64)


def units(name, count):
    """In (-1, 1), never 0, exact in F32 also if multiplied by a power of two and increased by 1."""
    return (2 * bits(name, count) - 65535) / 65536.0


def values(name, shape, scale=2.0):
    return torch.tensor(units(name, math.prod(shape)) * scale).view(shape)


def weight(name, shape):
    """A model's parameter: near 1 if it multiplies an element each, otherwise around 0."""
    gain = len(shape) == 1 and name.endswith("weight")
    return values(name, shape, 0.25) + (1 if gain else 0)


def integers(name, shape, below):
    return torch.tensor(bits(name, math.prod(shape)) % below).view(shape)


def digest(name, tensor):
    """Norm, projection on a direction that belongs to the name, first and last element: any element that is off changes the second."""
    flat = tensor.detach().double().flatten()
    direction = torch.tensor(units(name + " direction", flat.numel()))
    return [flat.norm().item(), (flat * direction).sum().item(), flat[0].item(), flat[-1].item()]


def shuffle(i, n, key):
    """runtime/input/shuffle.h: a Feistel network of four rounds, applied again until the result is below n."""
    half = 1
    while (1 << (2 * half)) < n:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for turn in range(4):
            left, right = right, left ^ (mix(right ^ key ^ (turn << 56)) & mask)
        i = left << half | right
        if i < n:
            return i


def sample(stream, seq_len, seed, number):
    """Tokens and targets of sample `number` of a training on the stream (runtime/input/data.h)."""
    count = (len(stream) - 1) // seq_len
    at = shuffle(number % count, count, mix(seed ^ mix(number // count))) * seq_len
    return stream[at : at + seq_len], stream[at + 1 : at + seq_len + 1]


def rounded(value, digits):
    if isinstance(value, float):
        return float("%.*g" % (digits, value))
    if isinstance(value, list):
        return [rounded(x, digits) for x in value]
    return {k: rounded(v, digits) for k, v in value.items()} if isinstance(value, dict) else value


def text(value, indent=""):
    """JSON with one line for everything that contains no object."""
    if not isinstance(value, dict) or not any(isinstance(v, dict) for v in value.values()):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"{indent}  {json.dumps(k)}: {text(v, indent + '  ')}" for k, v in value.items()) + f"\n{indent}}}"


def write(path, value, digits):
    with open(path, "w") as f:
        f.write(text(rounded(value, digits)) + "\n")
