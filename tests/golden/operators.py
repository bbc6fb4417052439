# SPDX-License-Identifier: Apache-2.0
"""The operators of tests/unit/op_case.c in PyTorch, differentiated by its autograd."""
import math

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
        shares = shares * torch.tensor([[[[factor(rate, stream, int(noise[n, i]), (h << 32) + j) for j in range(t)] for i in range(t)]
                                         for h in range(heads)] for n in range(b)], dtype=q.dtype)
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


def scaled_by(history, unit, known, first):
    """The exponent of the scale for a tensor with this amax history: as many values are set as the exponent of its amax says."""
    level = int((history > 0).sum())
    return (known - level + 32 if level else first) - unit


def rounded(x, exponent, most, dtype):
    return (x.float() * 2.0**exponent).clamp(-most, most).to(dtype).to(x.dtype) * 2.0**-exponent


def thermometer(x, unit):
    amax = x.abs().max().item()
    level = min(max(math.frexp(amax)[1] - unit + 32, 1), 64) if amax > 0 else 0
    return (torch.arange(64) < level).to(x.dtype)


class Fp8Linear(torch.autograd.Function):
    """x w^T + bias of operands that PyTorch itself rounds; `unit`: exponent of the loss's factor."""

    @staticmethod
    def forward(ctx, x, w, bias, history, weight_history, unit):
        x8 = rounded(x, scaled_by(history[0], 0, 8, 2), 448, torch.float8_e4m3fn)
        w8 = rounded(w, scaled_by(weight_history[0], 0, 8, 6), 448, torch.float8_e4m3fn)
        ctx.save_for_backward(x, w, x8, w8, history)
        ctx.unit, ctx.biased = unit, bias is not None
        return x8 @ w8.T + (bias if ctx.biased else 0)

    @staticmethod
    def backward(ctx, dy):
        x, w, x8, w8, history = ctx.saved_tensors
        dy8 = rounded(dy, scaled_by(history[1], ctx.unit, 15, 4), 57344, torch.float8_e5m2)
        dw = torch.einsum("btn,btk->nk", dy8, x8)
        dhistory = torch.stack((thermometer(x, 0), thermometer(dy, ctx.unit)))
        return dy8 @ w8, dw, dy.sum((0, 1)) if ctx.biased else None, dhistory, thermometer(w, 0)[None], None


def fp8_linear(i, transposed=False):
    w, bias = (i["w"].flatten(1).T, i["bias"].flatten()) if transposed else (i["w"], i.get("bias"))
    y = Fp8Linear.apply(i["x"], w, bias, i["history"], i["weight_history"], -6)
    return y.unflatten(-1, i["w"].shape[1:]) if transposed else y


class Fp8Experts(torch.autograd.Function):
    """Experts of operands that PyTorch itself rounds; `unit`: exponent of the loss's factor."""

    NAMES = ("x", "gate", "up", "down", "act", "weighted_act", "dy", "dgate", "dup")

    @staticmethod
    def rounding(history, unit):
        def round_one(name, x):
            row, gradient = history[Fp8Experts.NAMES.index(name)], name in ("dy", "dgate", "dup")
            if gradient:
                return rounded(x, scaled_by(row, unit, 15, 4), 57344, torch.float8_e5m2)
            return rounded(x, scaled_by(row, 0, 8, 6 if name in ("gate", "up", "down") else 2), 448, torch.float8_e4m3fn)
        return round_one

    @staticmethod
    def forward(ctx, x, weights, choice, gate, up, down, history, act, unit):
        ctx.save_for_backward(x, weights, choice, gate, up, down, history)
        ctx.act, ctx.unit = act, unit
        r, y = Fp8Experts.rounding(history, unit), torch.zeros_like(x)
        for e in range(gate.shape[0]):
            b, t, k = torch.nonzero(choice == e, as_tuple=True)
            rows = r("x", x[b, t])
            a = act(rows @ r("gate", gate[e]).T) * (rows @ r("up", up[e]).T)
            y.index_put_((b, t), weights[b, t, k, None] * (r("act", a) @ r("down", down[e]).T), accumulate=True)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weights, choice, gate, up, down, history = ctx.saved_tensors
        r, seen = Fp8Experts.rounding(history, ctx.unit), {name: [] for name in Fp8Experts.NAMES}

        def read(name, value):
            seen[name].append(value.flatten())
            return r(name, value)

        dx, dweights = torch.zeros_like(x), torch.zeros_like(weights)
        dgates, dups, ddowns = torch.zeros_like(gate), torch.zeros_like(up), torch.zeros_like(down)
        for e in range(gate.shape[0]):
            b, t, k = torch.nonzero(choice == e, as_tuple=True)
            rows, rows_dy, w = read("x", x[b, t]), read("dy", dy[b, t]), weights[b, t, k, None]
            gate8, up8, down8 = read("gate", gate[e]), read("up", up[e]), read("down", down[e])
            with torch.enable_grad():
                g, u = (rows @ gate8.T).requires_grad_(), (rows @ up8.T).requires_grad_()
                a = ctx.act(g) * u
            dact = rows_dy @ down8
            dweights[b, t, k] = (read("act", a.detach()) * dact).sum(-1)
            dg, du = torch.autograd.grad(a, (g, u), w * dact)
            dg, du = read("dgate", dg), read("dup", du)
            dgates[e], dups[e] = dg.T @ rows, du.T @ rows
            ddowns[e] = rows_dy.T @ read("weighted_act", w * a.detach())
            dx.index_put_((b, t), dg @ gate8 + du @ up8, accumulate=True)
        units = [ctx.unit if name in ("dy", "dgate", "dup") else 0 for name in Fp8Experts.NAMES]
        dhistory = torch.stack([thermometer(torch.cat(seen[name]), unit) for name, unit in zip(Fp8Experts.NAMES, units)])
        return dx, dweights, None, dgates, dups, ddowns, dhistory, None, None


def fp8_mixture(i, act=F.silu):
    weights, choice, balance = route(i["logits"], 2, 0.7)
    return Fp8Experts.apply(i["x"], weights, choice, i["gate"], i["up"], i["down"], i["history"], act, -6), balance


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


def attend(q, k, v, head_dim, scale, causal=False, window=0, mask=None):
    """Heads of q, which may be several times those of k and v; any number of keys; an additive mask."""
    (b, t, _), keys = q.shape, k.shape[1]
    q, k, v = (x.view(b, x.shape[1], -1, head_dim).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    distance = torch.arange(t)[:, None] - torch.arange(keys)[None]
    hidden = torch.zeros(t, keys, dtype=torch.bool)
    if causal:
        hidden = hidden | (distance < 0)
    if window:
        hidden = hidden | (distance.abs() >= window)
    scores = q @ k.transpose(-1, -2) * scale + (0 if mask is None else mask)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)


def smoothed(i):
    targets = torch.where(i["targets"] == 3, -1, i["targets"]).flatten()
    each = F.cross_entropy(i["logits"].flatten(0, 1), targets, ignore_index=-1, reduction="none", label_smoothing=0.1)
    return None, 0.3 * (each * i["weights"].flatten()).sum()


def each_position(i):
    """Rows of a sample by number."""
    return torch.stack([x[n] for x, n in zip(i["x"], i["index"])])


def squares(i):
    return None, 0.3 * ((i["x"] - i["mask"]) ** 2).sum()


def logits(i):
    each = F.binary_cross_entropy_with_logits(i["x"], i["mask"], reduction="none")
    return None, 0.3 * (each * i["weights"][..., None]).sum()


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
    "FP8 linear": lambda i: (fp8_linear(i), 0),
    "FP8 linear without bias": lambda i: (fp8_linear(i), 0),
    "FP8 linear transposed": lambda i: (fp8_linear(i, True), 0),
    "FP8 linear transposed, whole tiles": lambda i: (fp8_linear(i, True), 0),
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
    "FP8 experts": fp8_mixture,
    "FP8 experts gelu": lambda i: fp8_mixture(i, lambda x: F.gelu(x, approximate="tanh")),
    "loss": loss,
    "loss in 2 parts": loss,
    "loss smoothed": smoothed,
    "attention to both sides": lambda i: (attend(i["q"], i["k"], i["v"], 6, 0.4), 0),
    "attention to both sides, window": lambda i: (attend(i["q"], i["k"], i["v"], 5, 0.4, window=9), 0),
    "attention across": lambda i: (attend(i["q"], i["k"], i["v"], 5, 0.4, mask=i["mask"]), 0),
    "attention with a mask": lambda i: (attend(i["q"], i["k"], i["v"], 4, 0.4, causal=True, mask=i["mask"]), 0),
    "relu": lambda i: (F.relu(i["x"]), 0),
    "sigmoid": lambda i: (torch.sigmoid(i["x"]), 0),
    "silu": lambda i: (F.silu(i["x"]), 0),
    "tanh": lambda i: (torch.tanh(i["x"]), 0),
    "exp": lambda i: (i["x"].exp(), 0),
    "log": lambda i: (i["positive"].log(), 0),
    "sqrt": lambda i: (i["positive"].sqrt(), 0),
    "power": lambda i: (i["positive"] ** 1.7, 0),
    "sum of equals": lambda i: (i["a"] + i["b"], 0),
    "sum with a row": lambda i: (i["a"] + i["b"], 0),
    "difference of channels": lambda i: (i["a"] - i["b"], 0),
    "product of equals": lambda i: (i["a"] * i["b"], 0),
    "product with columns": lambda i: (i["a"] * i["b"], 0),
    "quotient of equals": lambda i: (i["a"] / i["positive"], 0),
    "quotient by one": lambda i: (i["a"] / i["positive"], 0),
    "column less row": lambda i: (i["a"] - i["b"], 0),
    "sum over the last": lambda i: (0.25 * i["x"].sum(3), 0),
    "sum over the first": lambda i: (0.25 * i["x"].sum((0, 1)), 0),
    "sum over all": lambda i: (0.25 * i["x"].sum(), 0),
    "sum over planes": lambda i: (0.25 * i["x"].sum((2, 3), keepdim=True), 0),
    "max over the last": lambda i: (i["x"].amax(3, keepdim=True), 0),
    "max over the middle": lambda i: (i["x"].amax((1, 2)), 0),
    "repeat": lambda i: (0.5 * i["x"].expand(4, 5, 6), 0),
    "reshape to heads": lambda i: (i["x"].reshape(4, 6, 5, 2), 0),
    "reshape, first two in one": lambda i: (i["x"].reshape(24, 10), 0),
    "reshape, last two in one": lambda i: (i["x"].reshape(4, 60), 0),
    "reshape, unequal": lambda i: (i["x"].reshape(6, 2, 2, 10), 0),
    "reshape with ones": lambda i: (i["x"].reshape(1, 4, 6, 10, 1), 0),
    "reshape, all in one": lambda i: (i["x"].reshape(240), 0),
    "transpose the last two": lambda i: (i["x"].permute(0, 2, 1), 0),
    "transpose heads and positions": lambda i: (i["x"].permute(0, 2, 1, 3), 0),
    "transpose all": lambda i: (i["x"].permute(3, 1, 0, 2), 0),
    "slice of the middle": lambda i: (i["x"][:, 1:3], 0),
    "slice of two": lambda i: (i["x"][:, :, 2:3, 3:7], 0),
    "pad": lambda i: (F.pad(i["x"], (2, 0, 1, 1)), 0),
    "concatenate along the middle": lambda i: (torch.cat((i["x"], i["y"], i["z"]), 1), 0),
    "concatenate along the last": lambda i: (torch.cat((i["x"], i["y"]), 1), 0),
    "gather rows": lambda i: (i["x"][i["index"]], 0),
    "gather positions of samples": lambda i: (each_position(i), 0),
    "matrix products": lambda i: (i["a"] @ i["b"], 0),
    "matrix products, first transposed": lambda i: (i["a"].mT @ i["b"], 0),
    "matrix products, second transposed": lambda i: (i["a"] @ i["b"].mT, 0),
    "matrix products, both transposed": lambda i: (i["a"].mT @ i["b"].mT, 0),
    "softmax": lambda i: (i["x"].softmax(-1), 0),
    "group norm": lambda i: (F.group_norm(i["x"], 3, i["gain"], i["bias"], 1e-5), 0),
    "convolution": lambda i: (F.conv2d(i["x"], i["w"], i["bias"], padding=1), 0),
    "convolution of patches": lambda i: (F.conv2d(i["x"], i["w"], stride=(2, 3)), 0),
    "convolution in groups": lambda i: (F.conv2d(i["x"], i["w"], i["bias"], stride=(2, 1), padding=(2, 0), dilation=(2, 1), groups=3), 0),
    "largest of windows": lambda i: (F.max_pool2d(i["x"], 2), 0),
    "largest of windows that overlap": lambda i: (F.max_pool2d(i["x"], 3, (2, 1), (1, 0)), 0),
    "mean of windows": lambda i: (F.avg_pool2d(i["x"], (3, 2), 2, 1), 0),
    "loss of squares": squares,
    "loss of logits": logits,
    "loss of a sum": lambda i: (None, 0.3 * i["x"].sum()),
    "reshard": lambda i: (i["x"] * 1, 0),
}

VOCAB = 11
HISTORIES = {"history": (2, 64), "weight_history": (1, 64)}
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
    "FP8 linear": {"x": (3, 5, 9), "w": (13, 9), "bias": (13,), **HISTORIES},
    "FP8 linear without bias": {"x": (2, 8, 16), "w": (32, 16), **HISTORIES},
    "FP8 linear transposed": {"x": (3, 5, 9), "w": (9, 3, 7), "bias": (3, 7), **HISTORIES},
    "FP8 linear transposed, whole tiles": {"x": (2, 16, 32), "w": (32, 3, 16), "bias": (3, 16), **HISTORIES},
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
    "FP8 experts": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9), "history": (9, 64)},
    "FP8 experts gelu": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9), "history": (9, 64)},
    "experts with biases": {"logits": (3, 6, 5), "x": (3, 6, 7), "gate": (5, 9, 7), "up": (5, 9, 7), "down": (5, 7, 9), "gate_bias": (5, 9),
                            "up_bias": (5, 9),
                            "down_bias": (5, 7)},
    "loss": {"logits": (3, 5, VOCAB), "targets": (3, 5)},
    "loss in 2 parts": {"logits": (3, 5, VOCAB), "targets": (3, 5)},
    "loss smoothed": {"logits": (3, 5, VOCAB), "targets": (3, 5), "weights": (3, 5)},
    "attention to both sides": {"q": (2, 13, 24), "k": (2, 13, 12), "v": (2, 13, 12)},
    "attention to both sides, window": {"q": (2, 37, 10), "k": (2, 37, 10), "v": (2, 37, 10)},
    "attention across": {"q": (2, 19, 10), "k": (2, 7, 10), "v": (2, 7, 10), "mask": (2, 1, 1, 7)},
    "attention with a mask": {"q": (2, 11, 16), "k": (2, 11, 8), "v": (2, 11, 8), "mask": (1, 4, 11, 11)},
    **{name: {"x": (3, 5, 2, 7)} for name in ("relu", "sigmoid", "silu", "tanh", "exp")},
    **{name: {"positive": (3, 5, 2, 7)} for name in ("log", "sqrt", "power")},
    "sum of equals": {"a": (3, 2, 5, 9), "b": (3, 2, 5, 9)},
    "sum with a row": {"a": (3, 2, 5, 9), "b": (9,)},
    "difference of channels": {"a": (3, 2, 5, 9), "b": (2, 1, 1)},
    "product of equals": {"a": (3, 2, 5, 9), "b": (3, 2, 5, 9)},
    "product with columns": {"a": (3, 2, 5, 9), "b": (3, 1, 5, 1)},
    "quotient of equals": {"a": (3, 2, 5, 9), "positive": (3, 2, 5, 9)},
    "quotient by one": {"a": (3, 2, 5, 9), "positive": (1,)},
    "column less row": {"a": (3, 5, 1), "b": (1, 18)},
    **{f"sum over {which}": {"x": (3, 2, 7, 21)} for which in ("the last", "the first", "all", "planes")},
    **{f"max over the {which}": {"x": (3, 2, 7, 21)} for which in ("last", "middle")},
    "repeat": {"x": (5, 1)},
    **{f"reshape{how}": {"x": (4, 6, 10)}
       for how in (" to heads", ", first two in one", ", last two in one", ", unequal", " with ones", ", all in one")},
    "transpose the last two": {"x": (3, 5, 7)},
    "transpose heads and positions": {"x": (2, 5, 3, 6)},
    "transpose all": {"x": (2, 3, 5, 4)},
    "slice of the middle": {"x": (3, 5, 7)},
    "slice of two": {"x": (2, 4, 3, 9)},
    "pad": {"x": (3, 3, 7)},
    "concatenate along the middle": {"x": (3, 5, 7), "y": (3, 1, 7), "z": (3, 2, 7)},
    "concatenate along the last": {"x": (6, 5), "y": (6, 18)},
    "gather rows": {"x": (11, 6), "index": (3, 5)},
    "gather positions of samples": {"x": (3, 12, 2, 5), "index": (3, 4)},
    "matrix products": {"a": (2, 3, 5, 9), "b": (2, 3, 9, 7)},
    "matrix products, first transposed": {"a": (2, 3, 9, 5), "b": (2, 3, 9, 7)},
    "matrix products, second transposed": {"a": (2, 3, 5, 9), "b": (2, 3, 7, 9)},
    "matrix products, both transposed": {"a": (2, 3, 9, 5), "b": (2, 3, 7, 9)},
    "softmax": {"x": (3, 5, 37)},
    "group norm": {"x": (3, 6, 5, 7), "gain": (6,), "bias": (6,)},
    "convolution": {"x": (3, 4, 5, 6), "w": (6, 4, 3, 3), "bias": (6,)},
    "convolution of patches": {"x": (3, 2, 6, 9), "w": (5, 2, 2, 3)},
    "convolution in groups": {"x": (2, 6, 7, 5), "w": (3, 2, 3, 2), "bias": (3,)},
    "largest of windows": {"x": (3, 4, 6, 7)},
    "largest of windows that overlap": {"x": (3, 4, 6, 7)},
    "mean of windows": {"x": (3, 4, 6, 7)},
    "loss of squares": {"x": (3, 5, 7), "mask": (3, 5, 7)},
    "loss of logits": {"x": (3, 5, 7), "mask": (3, 5, 7), "weights": (3, 5)},
    "loss of a sum": {"x": (3, 5, 7)},
    "reshard": {"x": (3, 5, 7)},
}
WHOLE = ("tokens", "targets", "segments", "noise", "index")
NO_GRADIENT = WHOLE + ("mask", "weights")


def whole(case, name, shape):
    """Integers below the vocabulary; one in seven targets is -1, to be ignored; segments grow along a sample."""
    if name == "segments":
        at = torch.arange(shape[1])
        return ((at > shape[1] // 3).long() + (at > shape[1] // 2).long()).expand(shape)
    numbers = formula.bits(f"{case}/{name}", math.prod(shape))
    if name == "targets":
        numbers = [-1 if n // 256 % 7 == 0 else n % VOCAB for n in numbers]
    return torch.tensor([n % VOCAB if n >= 0 else -1 for n in numbers]).view(shape)


def real(case, name, shape):
    """Tensors "positive..." are far from 0, as in op_case_value."""
    value = formula.values(f"{case}/{name}", shape)
    return value.abs() + 0.5 if name.startswith("positive") else value


def operator(case):
    """One case in F64: the result, the loss beside it, and the gradient of everything that has one."""
    inputs = {}
    for name, shape in SHAPES[case].items():
        inputs[name] = whole(case, name, shape) if name in WHOLE else real(case, name, shape).requires_grad_(name not in NO_GRADIENT)
    result, loss = CASES[case](inputs)
    found = {"inputs": {name: list(shape) for name, shape in SHAPES[case].items()}}
    total = loss
    if result is not None:
        found["result"] = formula.digest("result", result)
        total = total + (result * formula.values(f"{case}/seed", tuple(result.shape))).sum()
    if torch.is_tensor(loss):
        found["loss"] = loss.item()
    total.backward()
    found["gradients"] = {name: formula.digest(name, x.grad) for name, x in inputs.items() if name not in NO_GRADIENT}
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
    how = {"elements": elements, "steps": steps, "lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": decay,
           "scale": scale}
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
