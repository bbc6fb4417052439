# SPDX-License-Identifier: Apache-2.0
"""The nets of contrib/examples/nets in PyTorch, with the sizes of tests/unit/test_nets.c: loss and gradients of one step."""
import math

import torch
import torch.nn.functional as F

import formula

SAMPLES = 4


class Parameters(dict):
    """Made by name when first used."""

    def get(self, name, *shape):
        if name not in self:
            self[name] = formula.weight(name, shape).requires_grad_()
        return self[name]

    def linear(self, prefix, x, out, bias=True):
        return F.linear(x, self.get(f"{prefix}.weight", out, x.shape[-1]), self.get(f"{prefix}.bias", out) if bias else None)

    def norm(self, prefix, x, eps):
        width = x.shape[-1]
        return F.layer_norm(x, (width,), self.get(f"{prefix}.weight", width), self.get(f"{prefix}.bias", width), eps)

    def rms_norm(self, prefix, x):
        return F.rms_norm(x, (x.shape[-1],), self.get(f"{prefix}.weight", x.shape[-1]), 1e-6)

    def attention(self, prefix, x, heads, mask=None):
        q, k, v = (split(self.linear(f"{prefix}.{name}", x, x.shape[-1]), heads) for name in ("query", "key", "value"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.linear(f"{prefix}.output", y.transpose(1, 2).flatten(2), x.shape[-1])

    def mlp(self, prefix, x, inner):
        return self.linear(f"{prefix}.down", F.gelu(self.linear(f"{prefix}.up", x, inner)), x.shape[-1])


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def reals(name, *shape):
    return torch.stack([formula.values(f"{name} {n}", shape, 1.0) for n in range(SAMPLES)])


def whole(name, length, below):
    return torch.stack([formula.integers(f"{name} {n}", (length,), below) for n in range(SAMPLES)])


def padding(length):
    """The last three positions of every second sample."""
    mask = torch.zeros(SAMPLES, 1, 1, length)
    mask[1::2, :, :, length - 3 :] = -1e9
    return mask


def cross_entropy(logits, targets, weights=None):
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return (each if weights is None else each * weights.flatten()).mean()


def vgg19(p):
    x = reals("image", 3, 32, 32)
    for group, (count, width) in enumerate(((2, 2), (2, 4), (4, 8), (4, 16), (4, 16))):
        for i in range(count):
            prefix = f"features.{group}.{i}"
            x = F.relu(F.conv2d(x, p.get(f"{prefix}.weight", width, x.shape[1], 3, 3), p.get(f"{prefix}.bias", width), padding=1))
        x = F.max_pool2d(x, 2)
    x = F.relu(p.linear("classifier.0", x.flatten(1), 12))
    x = F.relu(p.linear("classifier.1", x, 12))
    return cross_entropy(p.linear("classifier.2", x, 5), whole("label", 1, 5))


def vit(p):
    x = F.conv2d(reals("image", 3, 8, 8), p.get("patches.weight", 16, 3, 4, 4), p.get("patches.bias", 16), stride=4)
    x = torch.cat((p.get("class", 1, 16).expand(SAMPLES, 1, 16), x.flatten(2).transpose(1, 2)), 1) + p.get("positions", 5, 16)
    for i in range(2):
        x = x + p.attention(f"blocks.{i}", p.norm(f"blocks.{i}.norm1", x, 1e-6), 4)
        x = x + p.mlp(f"blocks.{i}", p.norm(f"blocks.{i}.norm2", x, 1e-6), 24)
    return cross_entropy(p.linear("head", p.norm("norm", x, 1e-6)[:, 0], 5), whole("label", 1, 5))


def experts(p, prefix, x):
    """Two of four experts by a softmax over them, and a hundredth of the balance loss."""
    logits = F.linear(x, p.get(f"{prefix}.router.weight", 4, 16))
    weights, choice = logits.topk(2, -1)
    weights = weights.softmax(-1)
    load = F.one_hot(choice, 4).sum((1, 2)).double()
    balance = 0.01 / (SAMPLES * x.shape[1]) * 4 * (load * logits.softmax(-1).mean(1)).sum()
    gate, up, down = (p.get(f"{prefix}.experts.{name}", 4, *shape) for name, shape in (("gate", (8, 16)), ("up", (8, 16)), ("down", (16,
                                                                                                                                     8))))
    y = torch.zeros_like(x)
    for e in range(4):
        share = (weights * (choice == e)).sum(-1, keepdim=True)
        y = y + share * ((F.gelu(x @ gate[e].T) * (x @ up[e].T)) @ down[e].T)
    return y, balance


def bert(p, with_experts=False):
    table, length, balance = p.get("embeddings.words", 23, 16), 7, 0
    x = table[whole("tokens", length, 23)] + p.get("embeddings.types", 2, 16)[whole("types", length, 2)] + p.get("embeddings.positions",
                                                                                                                 length, 16)
    x, mask = p.norm("embeddings.norm", x, 1e-12), padding(length)
    for i in range(2):
        x = p.norm(f"blocks.{i}.norm1", x + p.attention(f"blocks.{i}", x, 4, mask), 1e-12)
        if with_experts and i % 2:
            y, balance = experts(p, f"blocks.{i}", x)
        else:
            y = p.mlp(f"blocks.{i}", x, 8 if with_experts else 24)
        x = p.norm(f"blocks.{i}.norm2", x + y, 1e-12)
    y = p.norm("head.norm", F.gelu(p.linear("head.dense", x, 16)), 1e-12)
    words = cross_entropy(F.linear(y, table, p.get("head.bias", 23)), whole("targets", length, 23), whole("weights", length, 2).double())
    follows = p.linear("follows", torch.tanh(p.linear("pooler", x[:, 0], 16)), 2)
    return words + cross_entropy(follows, whole("follows", 1, 2)) + balance


def distance(query, key, both_sides):
    """The bucket of T5: 8 numbers, of which the farther ones are on a logarithmic scale up to 16."""
    count = 4 if both_sides else 8
    first = count if both_sides and key > query else 0
    far = abs(query - key) if both_sides else max(query - key, 0)
    if far < count // 2:
        return first + far
    part = math.log(far / (count // 2)) / math.log(16 / (count // 2))
    return first + min(count - 1, count // 2 + int(part * (count - count // 2)))


def t5_bias(p, name, length):
    numbers = torch.tensor([[distance(q, k, name == "encoder") for k in range(length)] for q in range(length)])
    return p.get(f"{name}.bias", 8, 4)[numbers].permute(2, 0, 1)


def t5_attention(p, prefix, x, memory, bias):
    q = split(p.linear(f"{prefix}.query", x, 20, False), 4)
    k, v = (split(p.linear(f"{prefix}.{name}", memory, 20, False), 4) for name in ("key", "value"))
    y = (q @ k.mT + bias).softmax(-1) @ v
    return p.linear(f"{prefix}.output", y.transpose(1, 2).flatten(2), 16, False)


def t5_mlp(p, prefix, x):
    return x + p.linear(f"{prefix}.down", F.relu(p.linear(f"{prefix}.up", p.rms_norm(f"{prefix}.norm3", x), 24, False)), 16, False)


def t5(p):
    table, mask = p.get("words", 23, 16), padding(9)
    x, bias = table[whole("source", 9, 23)], t5_bias(p, "encoder", 9) + mask
    for i in range(2):
        y = p.rms_norm(f"encoder.{i}.norm1", x)
        x = t5_mlp(p, f"encoder.{i}", x + t5_attention(p, f"encoder.{i}.self", y, y, bias))
    memory = p.rms_norm("encoder.norm", x)
    x, bias = table[whole("tokens", 6, 23)], t5_bias(p, "decoder", 6) + torch.full((6, 6), -1e9).triu(1)
    for i in range(2):
        y = p.rms_norm(f"decoder.{i}.norm1", x)
        x = x + t5_attention(p, f"decoder.{i}.self", y, y, bias)
        x = x + t5_attention(p, f"decoder.{i}.cross", p.rms_norm(f"decoder.{i}.norm2", x), memory, mask)
        x = t5_mlp(p, f"decoder.{i}", x)
    return cross_entropy(F.linear(p.rms_norm("decoder.norm", x) / 4, table), whole("targets", 6, 23))


NETS = {"vgg19": vgg19, "vit": vit, "bert": bert, "bert with experts": lambda p: bert(p, True), "t5": t5}


def write(folder):
    torch.set_default_dtype(torch.float64)
    found = {}
    for name, net in NETS.items():
        parameters = Parameters()
        loss = net(parameters)
        loss.backward()
        found[name] = {"loss": loss.item(), "gradients": {key: formula.digest(key, x.grad) for key, x in parameters.items()}}
    formula.write(f"{folder}/nets.json", found, 15)
