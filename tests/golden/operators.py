# SPDX-License-Identifier: Apache-2.0
"""The operators of tests/unit/op_case.c in PyTorch, differentiated by its autograd."""
import torch
import torch.nn.functional as F

import formula


def rope(x, head_dim, theta=10000.0):
    b, t, width = x.shape
    x = x.view(b, t, width // head_dim, head_dim)
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = (torch.arange(t, dtype=torch.float64)[:, None] * frequency)[None, :, None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).view(b, t, width)


def rope_of_part(x, head_dim, frequency, scale=1.0, interleaved=False):
    """The first 2 * len(frequency) elements of each head; pairs of neighbours, or of halves."""
    b, t, width = x.shape
    count = len(frequency)
    x = x.view(b, t, width // head_dim, head_dim)
    angle = (torch.arange(t, dtype=torch.float64)[:, None] * torch.tensor(frequency, dtype=torch.float64))[None, :, None, :]
    cos, sin = (scale * angle.cos()).to(x.dtype), (scale * angle.sin()).to(x.dtype)
    turned, rest = x[..., : 2 * count], x[..., 2 * count :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned, rest), -1).view(b, t, width)


def norm_heads(x, gain, eps):
    heads = x.unflatten(-1, (-1, gain.shape[0]))
    return ((1 + gain) * heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)


def clamped(gate, up, limit):
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(1.702 * gate)


def attention(q, k, v, head_dim, scale, window=0, segments=None, softcap=0, sinks=None, noise=None, rate=0.0, stream=0):
    b, t, width = q.shape
    heads, kv = width // head_dim, k.shape[2] // head_dim
    q = q.view(b, t, heads, head_dim).transpose(1, 2)
    k, v = (x.view(b, t, kv, head_dim).transpose(1, 2).repeat_interleave(heads // kv, 1) for x in (k, v))
    distance = torch.arange(t)[:, None] - torch.arange(t)[None]
    hidden = (distance < 0) | ((distance >= window) if window else torch.zeros_like(distance, dtype=torch.bool))
    hidden = hidden[None].expand(b, t, t)
    if segments is not None:
        hidden = hidden | (segments[:, :, None] != segments[:, None, :])
    scores = q @ k.transpose(-1, -2) * scale
    scores = (softcap * torch.tanh(scores / softcap) if softcap else scores).masked_fill(hidden[:, None], float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(b, heads, t, 1)), -1)
    shares = scores.softmax(-1)[..., :t]
    if noise is not None:
        shares = shares * torch.tensor([[[[factor(rate, stream, int(noise[n, i]), (h << 32) + j) for j in range(t)] for i in range(t)] for h in range(heads)] for n in range(b)], dtype=q.dtype)
    return (shares @ v).transpose(1, 2).reshape(b, t, width)


def route(logits, k, scale):
    """Weights, choice and the balance loss: per sample, E * tokens sent to an expert * mean probability of it."""
    experts = logits.shape[-1]
    weights, choice = torch.topk(logits, k, -1)
    load = F.one_hot(choice, experts).sum((1, 2)).to(logits.dtype)
    balance = scale * experts * (load * logits.softmax(-1).mean(1)).sum()
    return weights.softmax(-1), choice, balance


def experts(x, weights, choice, gate, up, down, act=F.silu):
    y = torch.zeros_like(x)
    for e in range(gate.shape[0]):
        share = (weights * (choice == e)).sum(-1, keepdim=True)
        y = y + share * ((act(x @ gate[e].T) * (x @ up[e].T)) @ down[e].T)
    return y


def mixture(i):
    weights, choice, balance = route(i["logits"], 2, 0.7)
    return experts(i["x"], weights, choice, i["gate"], i["up"], i["down"]), balance


def mixture_gelu(i):
    weights, choice, balance = route(i["logits"], 2, 0.7)
    return experts(i["x"], weights, choice, i["gate"], i["up"], i["down"], lambda x: F.gelu(x, approximate="tanh")), balance


def mixture_biased(i):
    weights, choice, balance = route(i["logits"], 2, 0.7)
    y = torch.zeros_like(i["x"])
    for e in range(i["gate"].shape[0]):
        share = (weights * (choice == e)).sum(-1, keepdim=True)
        act = clamped(i["x"] @ i["gate"][e].T + i["gate_bias"][e], i["x"] @ i["up"][e].T + i["up_bias"][e], 1.1)
        y = y + share * (act @ i["down"][e].T + i["down_bias"][e])
    return y, balance


def routed_over_all(i):
    _, choice, balance = route(i["logits"], 2, 0.7)
    return i["logits"].softmax(-1).gather(-1, choice), balance


def routed_in_groups(i, score, weight, best, normalised):
    """The 2 best of 6 experts, within the best 2 of 3 groups by the sum of their `best` largest scores."""
    logits = i["logits"]
    chosen_by = score(logits) + (i["bias"].detach() if "bias" in i else 0)
    groups = chosen_by.unflatten(-1, (3, 2)).topk(best, -1)[0].sum(-1).topk(2, -1)[1]
    inside = torch.zeros(*logits.shape[:-1], 3).scatter_(-1, groups, 1.0).repeat_interleave(2, -1).bool()
    choice = chosen_by.masked_fill(~inside, float("-inf")).topk(2, -1)[1]
    load = F.one_hot(choice, 6).sum((1, 2)).to(logits.dtype)
    balance = 0.7 * 6 * (load * logits.softmax(-1).mean(1)).sum()
    weights = weight(logits).gather(-1, choice)
    if "bias" in i:
        balance = balance + 0 * i["bias"].sum()
    return 1.5 * (weights / weights.sum(-1, keepdim=True) if normalised else weights), balance


def join_shared(i):
    y = torch.cat((i["a"].unflatten(-1, (4, 3)), i["b"][:, :, None].expand(2, 7, 4, 2)), -1)[..., :4]
    return torch.cat((y, torch.zeros(2, 7, 4, 1, dtype=y.dtype)), -1).flatten(-2)


def philox(stream, noise, block):
    """Four 32-bit words of Philox4x32-10, keyed by the operator's stream and counted by block and noise."""
    x, key = [block & 0xFFFFFFFF, block >> 32, noise, 0], [stream, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ x[3] ^ key[1], a & 0xFFFFFFFF]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return x


def factor(rate, stream, noise, number):
    return 0.0 if philox(stream, noise, number // 4)[number % 4] * 2.0**-32 < rate else 1 / (1 - rate)


def dropped(x, noise, rate, stream):
    return x * torch.tensor([[[factor(rate, stream, int(n), j) for j in range(x.shape[2])] for n in row] for row in noise], dtype=x.dtype)


def loss(i):
    return None, 0.3 * F.cross_entropy(i["logits"].flatten(0, 1), i["targets"].flatten(), ignore_index=-1, reduction="sum")


def routed(i):
    weights, _, balance = route(i["logits"], 2, 0.7)
    return weights, balance


# Case -> (result that meets the seed, or None; loss beside it).
CASES = {
    "embed": lambda i: (F.embedding(i["tokens"], i["table"]), 0),
    "position": lambda i: (i["x"] + i["table"][: i["x"].shape[1]], 0),
    "embed wide": lambda i: (F.embedding(i["tokens"], i["table"]), 0),
    "attention wide": lambda i: (attention(i["q"], i["k"], i["v"], 38, 0.4), 0),
    "rope wide": lambda i: (rope(i["x"], 38), 0),
    "layernorm": lambda i: (F.layer_norm(i["x"], i["gain"].shape, i["gain"], i["bias"], 1e-5), 0),
    "rmsnorm": lambda i: (i["gain"] * i["x"] * torch.rsqrt(i["x"].pow(2).mean(-1, keepdim=True) + 1e-5), 0),
    "rmsnorm heads": lambda i: (norm_heads(i["x"], i["gain"], 1e-5), 0),
    "linear": lambda i: (F.linear(i["x"], i["w"]), 0),
    "linear with bias": lambda i: (F.linear(i["x"], i["w"], i["bias"]), 0),
    "linear transposed": lambda i: (torch.einsum("btk,kcn->btcn", i["x"], i["w"]) + i["bias"], 0),
    "linear large": lambda i: (F.linear(i["x"], i["w"], i["bias"]), 0),
    "attention": lambda i: (attention(i["q"], i["k"], i["v"], 6, 0.4), 0),
    "attention window": lambda i: (attention(i["q"], i["k"], i["v"], 5, 0.4, window=40), 0),
    "attention segments": lambda i: (attention(i["q"], i["k"], i["v"], 4, 0.4, segments=i["segments"]), 0),
    "attention sinks": lambda i: (attention(i["q"], i["k"], i["v"], 6, 0.4, segments=i["segments"], softcap=1.5, sinks=i["sinks"]), 0),
    "attention packed": lambda i: (attention(*i["qkv"].unbind(2), 5, 0.4), 0),
    "attention unpacked": lambda i: (attention(*i["qkv"].unbind(2), 5, 0.4), 0),
    "rope": lambda i: (rope(i["x"], 6), 0),
    "rope scaled": lambda i: (rope_of_part(i["x"], 8, (0.9, 0.25, 0.03), 1.25, True), 0),
    "rope partial": lambda i: (rope_of_part(i["x"], 6, (1.0, 0.1)), 0),
    "gelu": lambda i: (F.gelu(i["x"], approximate="tanh"), 0),
    "gelu exact": lambda i: (F.gelu(i["x"]), 0),
    "swiglu": lambda i: (F.silu(i["gate"]) * i["up"], 0),
    "geglu": lambda i: (F.gelu(i["gate"], approximate="tanh") * i["up"], 0),
    "geglu exact": lambda i: (F.gelu(i["gate"]) * i["up"], 0),
    "clamped": lambda i: (clamped(i["gate"], i["up"], 0.8), 0),
    "dropout": lambda i: (dropped(i["x"], i["noise"], 0.3, 5), 0),
    "attention dropout": lambda i: (attention(i["q"], i["k"], i["v"], 6, 0.4, noise=i["noise"], rate=0.3, stream=6), 0),
    "add": lambda i: (i["a"] + i["b"], 0),
    "scale": lambda i: (1.5 * i["x"], 0),
    "softcap": lambda i: (0.9 * torch.tanh(i["x"] / 0.9), 0),
    "route": routed,
    "route over all": routed_over_all,
    "route in groups": lambda i: routed_in_groups(i, lambda x: x, lambda x: x.softmax(-1), 1, False),
    "route by sigmoid": lambda i: routed_in_groups(i, torch.sigmoid, torch.sigmoid, 2, True),
    "route by sigmoid over all": lambda i: routed_in_groups(i, torch.sigmoid, torch.sigmoid, 2, False),
    "join heads": lambda i: (torch.cat((i["a"].unflatten(-1, (4, 3)), i["b"].unflatten(-1, (4, 2))), -1).flatten(-2), 0),
    "join heads, shared": lambda i: (join_shared(i), 0),
    "experts": mixture,
    "experts gelu": mixture_gelu,
    "experts with biases": mixture_biased,
    "loss": loss,
    "loss in 2 parts": loss,
}

VOCAB = 11
# Case -> shapes of the tensors that it reads; those in WHOLE are integers and have no gradient.
SHAPES = {
    "embed": {"tokens": (3, 5), "table": (VOCAB, 7)},
    "position": {"x": (3, 5, 7), "table": (6, 7)},
    "embed wide": {"tokens": (3, 5), "table": (VOCAB, 37)},
    "attention wide": {"q": (2, 19, 76), "k": (2, 19, 38), "v": (2, 19, 38)},
    "rope wide": {"x": (2, 9, 76)},
    "layernorm": {"x": (3, 5, 37), "gain": (37,), "bias": (37,)},
    "rmsnorm": {"x": (3, 5, 37), "gain": (37,)},
    "rmsnorm heads": {"x": (3, 5, 24), "gain": (6,)},
    "linear": {"x": (3, 5, 9), "w": (13, 9)},
    "linear with bias": {"x": (3, 5, 9), "w": (13, 9), "bias": (13,)},
    "linear transposed": {"x": (3, 5, 9), "w": (9, 3, 7), "bias": (3, 7)},
    "linear large": {"x": (2, 101, 407), "w": (67, 407), "bias": (67,)},
    "attention": {"q": (2, 13, 24), "k": (2, 13, 12), "v": (2, 13, 12)},
    "attention window": {"q": (2, 135, 10), "k": (2, 135, 5), "v": (2, 135, 5)},
    "attention segments": {"q": (2, 130, 12), "k": (2, 130, 12), "v": (2, 130, 12), "segments": (2, 130)},
    "attention sinks": {"q": (2, 13, 24), "k": (2, 13, 12), "v": (2, 13, 12), "segments": (2, 13), "sinks": (4,)},
    "attention packed": {"qkv": (2, 17, 3, 20)},
    "attention unpacked": {"qkv": (2, 17, 3, 20)},
    "rope": {"x": (2, 70, 12)},
    "rope scaled": {"x": (2, 70, 16)},
    "rope partial": {"x": (2, 9, 12)},
    "gelu": {"x": (3, 5, 7)},
    "gelu exact": {"x": (3, 5, 7)},
    "swiglu": {"gate": (3, 5, 7), "up": (3, 5, 7)},
    "geglu": {"gate": (3, 5, 7), "up": (3, 5, 7)},
    "geglu exact": {"gate": (3, 5, 7), "up": (3, 5, 7)},
    "clamped": {"gate": (3, 5, 7), "up": (3, 5, 7)},
    "dropout": {"x": (3, 5, 7), "noise": (3, 5)},
    "attention dropout": {"q": (2, 13, 24), "k": (2, 13, 12), "v": (2, 13, 12), "noise": (2, 13)},
    "add": {"a": (3, 5, 7), "b": (3, 5, 7)},
    "scale": {"x": (3, 5, 7)},
    "softcap": {"x": (3, 5, 7)},
    "route": {"logits": (3, 6, 5)},
    "route over all": {"logits": (3, 6, 5)},
    "route in groups": {"logits": (3, 6, 6)},
    "route by sigmoid": {"logits": (3, 6, 6), "bias": (6,)},
    "route by sigmoid over all": {"logits": (3, 6, 6), "bias": (6,)},
    "join heads": {"a": (2, 7, 12), "b": (2, 7, 8)},
    "join heads, shared": {"a": (2, 7, 12), "b": (2, 7, 2)},
    "experts": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9)},
    "experts gelu": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9)},
    "experts with biases": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9), "gate_bias": (5, 9), "up_bias": (5, 9),
                            "down_bias": (5, 7)},
    "loss": {"logits": (3, 5, VOCAB), "targets": (3, 5)},
    "loss in 2 parts": {"logits": (3, 5, VOCAB), "targets": (3, 5)},
}
WHOLE = ("tokens", "targets", "segments", "noise")


def whole(case, name, shape):
    """Integers below the vocabulary; one in seven targets is -1, to be ignored; segments grow along a sample."""
    if name == "segments":
        at = torch.arange(shape[1])
        return ((at > shape[1] // 3).long() + (at > shape[1] // 2).long()).expand(shape)
    numbers = formula.bits(f"{case}/{name}", shape[0] * shape[1])
    if name == "targets":
        numbers = [-1 if n // 256 % 7 == 0 else n % VOCAB for n in numbers]
    return torch.tensor([n % VOCAB if n >= 0 else -1 for n in numbers]).view(shape)


def operator(case):
    """One case in F64: the result, the loss beside it, and the gradient of everything that has one."""
    inputs = {}
    for name, shape in SHAPES[case].items():
        inputs[name] = whole(case, name, shape) if name in WHOLE else formula.values(f"{case}/{name}", shape).requires_grad_()
    result, loss = CASES[case](inputs)
    found = {"inputs": {name: list(shape) for name, shape in SHAPES[case].items()}}
    total = loss
    if result is not None:
        found["result"] = formula.digest("result", result)
        total = total + (result * formula.values(f"{case}/seed", tuple(result.shape))).sum()
    if torch.is_tensor(loss):
        found["loss"] = loss.item()
    total.backward()
    found["gradients"] = {name: formula.digest(name, x.grad) for name, x in inputs.items() if name not in WHOLE}
    return found


def adamw(elements, steps, lr, betas, eps, decay, scale):
    """torch.optim.AdamW on one tensor; every gradient is multiplied by `scale` first, as clipping does."""
    x = formula.values("adamw/parameter", (elements,)).requires_grad_()
    optimizer = torch.optim.AdamW([x], lr=lr, betas=betas, eps=eps, weight_decay=decay, foreach=False)
    squares = []
    for step in range(steps):
        gradient = formula.values(f"adamw/gradient {step}", (elements,))
        squares.append(gradient.square().sum().item())
        x.grad = gradient * scale
        optimizer.step()
    state = optimizer.state[x]
    how = {"elements": elements, "steps": steps, "lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": decay, "scale": scale}
    results = {"parameter": x, "m": state["exp_avg"], "v": state["exp_avg_sq"]}
    return {"how": how, "squares": squares, "results": {name: formula.digest(name, t) for name, t in results.items()}}


def lion(elements, steps, lr, betas, decay, scale):
    """Algorithm 2 of the paper (Chen et al., arXiv 2302.06675) on one tensor; PyTorch has no Lion."""
    x, m, squares = formula.values("lion/parameter", (elements,)), torch.zeros(elements), []
    for step in range(steps):
        gradient = formula.values(f"lion/gradient {step}", (elements,))
        squares.append(gradient.square().sum().item())
        c = betas[0] * m + (1 - betas[0]) * gradient * scale
        x = x - lr * (c.sign() + decay * x)
        m = betas[1] * m + (1 - betas[1]) * gradient * scale
    how = {"elements": elements, "steps": steps, "lr": lr, "beta1": betas[0], "beta2": betas[1], "weight_decay": decay, "scale": scale}
    return {"how": how, "squares": squares, "results": {name: formula.digest(name, t) for name, t in {"parameter": x, "m": m}.items()}}


def write(folder):
    torch.set_default_dtype(torch.float64)
    formula.write(f"{folder}/operators.json", {"kind": "operators", "cases": {case: operator(case) for case in CASES}}, 15)
    updates = {"tail": adamw(37, 3, 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0), "clipped": adamw(37, 4, 1e-2, (0.8, 0.99), 0.25, 0.3, 0.125),
               "several blocks": adamw(20001, 2, 1e-3, (0.9, 0.999), 1e-3, 0.0, 0.5)}
    formula.write(f"{folder}/adamw.json", {"kind": "adamw", "cases": updates}, 15)
    updates = {"tail": lion(37, 3, 3e-3, (0.9, 0.99), 0.1, 1.0), "clipped": lion(37, 5, 1e-2, (0.6, 0.8), 0.3, 0.125),
               "several blocks": lion(20001, 2, 1e-3, (0.95, 0.98), 0.0, 0.5)}
    formula.write(f"{folder}/lion.json", {"kind": "lion", "cases": updates}, 15)
