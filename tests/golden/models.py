# SPDX-License-Identifier: Apache-2.0
"""Models of `transformers` in F64, with weights by formula under the names of published files: logits, gradients, and short trainings.

A new model type is an entry of MODELS, which becomes tests/data/golden/model-NAME.json."""
import copy
import fnmatch
import math
import os
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

import formula

SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2,
         "max_position_embeddings": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
GPT2 = {"model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
NEOX = {"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 32,
        "rotary_pct": 0.5, "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0}
LATENT = dict(SIZES, tie_word_embeddings=False, num_key_value_heads=4, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=10,
              first_k_dense_replace=1, kv_lora_rank=7, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, pad_token_id=None)
# Name -> config.json (deepseek_v2 with its own default of n_shared_experts), without a padding token, whose embedding has no
# gradient in transformers. (The loss of Mixtral's router is another
# here than in transformers; tests of operators compare it.)
MODELS = {
    "gpt2": dict(GPT2, tie_word_embeddings=True),
    "gpt2-exact": dict(GPT2, tie_word_embeddings=False, activation_function="gelu", n_inner=50, layer_norm_epsilon=1e-3),
    "llama": dict(SIZES, model_type="llama", tie_word_embeddings=False),
    "llama-bias": dict(SIZES, model_type="llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3,
                       rope_theta=500.0, head_dim=10),
    "mistral": dict(SIZES, model_type="mistral", tie_word_embeddings=False, sliding_window=5),
    "qwen2": dict(SIZES, model_type="qwen2", tie_word_embeddings=True, num_key_value_heads=1),
    "mixtral": dict(SIZES, model_type="mixtral", tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=2,
                    router_aux_loss_coef=0.0, sliding_window=None),
    "llama-linear": dict(SIZES, model_type="llama", tie_word_embeddings=False, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama-dynamic": dict(SIZES, model_type="llama", tie_word_embeddings=False, max_position_embeddings=12,
                          rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "llama-llama3": dict(SIZES, model_type="llama", tie_word_embeddings=True, head_dim=16, rope_theta=500.0,
                         rope_scaling={"rope_type": "llama3", "factor": 8.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
    "llama-yarn": dict(SIZES, model_type="llama", tie_word_embeddings=False, head_dim=16, rope_theta=100.0,
                       rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0,
                       "original_max_position_embeddings": 16}),
    "qwen2-window": dict(SIZES, model_type="qwen2", tie_word_embeddings=False, use_sliding_window=True, sliding_window=4,
                         max_window_layers=1),
    "qwen3": dict(SIZES, model_type="qwen3", tie_word_embeddings=False, head_dim=8),
    "smollm3": dict(SIZES, model_type="smollm3", tie_word_embeddings=True, no_rope_layer_interval=2, pad_token_id=None),
    "smollm3-window": dict(SIZES, model_type="smollm3", tie_word_embeddings=False, no_rope_layers=[0, 1], use_sliding_window=True,
                           sliding_window=4, attention_bias=True, pad_token_id=None),
    "olmo2": dict(SIZES, model_type="olmo2", tie_word_embeddings=False, pad_token_id=None),
    "phi3": dict(SIZES, model_type="phi3", tie_word_embeddings=False, sliding_window=7, pad_token_id=None),
    "phi3-long": dict(SIZES, model_type="phi3", tie_word_embeddings=False, hidden_size=32, partial_rotary_factor=0.75,
                      original_max_position_embeddings=16, max_position_embeddings=64,
                      rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 1.5, 3.0]},
                      pad_token_id=None),
    "gemma2": dict(SIZES, model_type="gemma2", tie_word_embeddings=True, head_dim=8, sliding_window=5, query_pre_attn_scalar=6,
                   attn_logit_softcapping=0.5,
                   final_logit_softcapping=1.5, hidden_activation="gelu_pytorch_tanh", pad_token_id=None),
    "gemma3": dict(SIZES, model_type="gemma3_text", tie_word_embeddings=True, head_dim=8, sliding_window=5, query_pre_attn_scalar=6,
                   num_hidden_layers=3,
                   sliding_window_pattern=2, hidden_activation="gelu_pytorch_tanh", pad_token_id=None),
    "gemma3-inside": {"model_type": "gemma3", "text_config": dict(SIZES, tie_word_embeddings=True, head_dim=8, sliding_window=4,
                                                                  query_pre_attn_scalar=8,
                      hidden_activation="gelu_pytorch_tanh", layer_types=["full_attention", "sliding_attention"], pad_token_id=None,
                      rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}})},
    "gpt_neox": dict(NEOX, use_parallel_residual=True),
    "gpt_neox-serial": dict(NEOX, use_parallel_residual=False, rotary_pct=1.0, tie_word_embeddings=True, hidden_act="gelu_new"),
    "deepseek_v2": dict(LATENT, model_type="deepseek_v2", topk_method="greedy", q_lora_rank=None, n_routed_experts=5),
    "deepseek_v2-groups": dict(LATENT, model_type="deepseek_v2", topk_method="group_limited_greedy", n_shared_experts=2, n_group=3,
                               topk_group=2, q_lora_rank=9,
                               routed_scaling_factor=1.5),
    "deepseek_v3": dict(LATENT, model_type="deepseek_v3", n_shared_experts=2, n_group=3, topk_group=2, q_lora_rank=9,
                        routed_scaling_factor=2.5, norm_topk_prob=True, head_dim=4,
                        rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5,
                                      "original_max_position_embeddings": 16}),
    "deepseek_v3-halves": dict(LATENT, model_type="deepseek_v3", n_shared_experts=2, n_group=1, topk_group=1, q_lora_rank=None,
                               norm_topk_prob=False, rope_interleave=False, head_dim=4, v_head_dim=10),
    "gpt_oss": dict(SIZES, model_type="gpt_oss", tie_word_embeddings=False, head_dim=8, num_local_experts=5, num_experts_per_tok=2,
                    sliding_window=5, pad_token_id=None,
                    rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
                                  "original_max_position_embeddings": 16}),
    "qwen2_moe": dict(SIZES, model_type="qwen2_moe", tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
                      moe_intermediate_size=10, shared_expert_intermediate_size=14, num_hidden_layers=3, mlp_only_layers=[1]),
    "qwen2_moe-window": dict(SIZES, model_type="qwen2_moe", tie_word_embeddings=True, num_experts=5, num_experts_per_tok=3,
                             moe_intermediate_size=10, shared_expert_intermediate_size=7, norm_topk_prob=True, qkv_bias=False,
                             num_hidden_layers=4, use_sliding_window=True, sliding_window=4, max_window_layers=2),
    "qwen3_moe": dict(SIZES, model_type="qwen3_moe", tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
                      moe_intermediate_size=10, norm_topk_prob=True,
                      num_hidden_layers=3, decoder_sparse_step=2, head_dim=6),
    "qwen3_moe-all": dict(SIZES, model_type="qwen3_moe", tie_word_embeddings=False, num_experts=5, num_experts_per_tok=3,
                          moe_intermediate_size=10, norm_topk_prob=False),
}
# Models that are computed on documents, too, and the token that ends one.
DOCUMENTS = {"gpt2": 10, "llama": 10}
JOB = {"seq_len": 19, "global_batch": 3, "seed": 7}
# A model whose gradients PyTorch itself computes with a larger error in float32 has it in its file, and the test allows for it.
FLOAT32_NOTED = 5e-6
# Gradients that are smaller, relative to the model's largest, are rounding (transformers computes softmax in float32): those of keys'
# biases, unless keys are rotated.
VANISHED = 1e-7
PLAIN = {"attn_implementation": "eager", "experts_implementation": "eager"}  # without kernels that lack F64
TOKENS = 700  # of the stream; so few that a training reads several epochs
# Name -> model, the job's optimizer, and its steps.
TRAININGS = {
    "gpt2": ("gpt2", {"lr": 3e-3, "min_lr": 1e-4, "warmup_steps": 3, "schedule": "cosine", "weight_decay": 0.2, "beta1": 0.9, "beta2": 0.95,
                      "eps": 1e-4, "clip": 0.5}, 14),
    "llama": ("llama", {"lr": 2e-3, "min_lr": 5e-4, "warmup_steps": 4, "schedule": "linear", "weight_decay": 0.1, "beta1": 0.8,
                        "beta2": 0.99, "eps": 1e-3, "clip": 2.5}, 12),
    "wsd": ("llama", {"lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 2, "schedule": "wsd", "decay_steps": 5, "decay": "cosine",
                      "weight_decay": 0.3, "beta1": 0.9, "beta2": 0.95,
                      "eps": 1e-3, "clip": 1.0, "no_decay": ["*embed*", "*.1.*proj.weight"]}, 11),
    "free": ("llama", {"lr": 1e-3, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-2,
                       "clip": 0.0}, 4),
}


def published(model):
    """The parameters as a published file names them; transformers may hold them in another form."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


def language_part(name):
    """The config of the language model, which may be a part of another one."""
    config = MODELS[name]
    return dict(config["text_config"], model_type=config["model_type"] + "_text") if "text_config" in config else config


def build(name):
    """The model with its weights, and the shapes of the published tensors."""
    config = transformers.AutoConfig.for_model(**language_part(name))
    empty = transformers.AutoModelForCausalLM.from_config(config, **PLAIN).double()
    tensors = {tensor: formula.weight(tensor, tuple(old.shape)) for tensor, old in published(empty).items()}
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, output_loading_info=True, **PLAIN)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[what], (name, what, info[what])
    return model, {tensor: list(t.shape) for tensor, t in tensors.items()}


def published_form(model, of_parameter):
    """Something that every parameter has, such as its gradient, under the published names."""
    twin = transformers.AutoModelForCausalLM.from_config(model.config, **PLAIN).double()
    with torch.no_grad():
        for (_, to), (_, parameter) in zip(twin.named_parameters(), model.named_parameters()):
            to.copy_(of_parameter(parameter))
    return {tensor: formula.digest(tensor, t) for tensor, t in published(twin).items()}


def stream_of(name):
    return formula.integers("tokens", (TOKENS,), language_part(name)["vocab_size"])


def batch(stream, step):
    samples = [formula.sample(stream, JOB["seq_len"], JOB["seed"], step * JOB["global_batch"] + b) for b in range(JOB["global_batch"])]
    return (torch.stack(part) for part in zip(*samples))


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def documents_loss(model, name, end):
    """Documents that do not see each other and count their own positions, and a mask of the targets."""
    stream, mask = stream_of(name), formula.bits("mask", TOKENS) % 3 != 0
    tokens, _ = batch(stream, 0)
    _, places = batch(torch.arange(TOKENS), 0)
    targets = torch.where(torch.tensor(mask)[places], stream[places], -100)
    ends = (tokens == end).long()
    document = ends.cumsum(1) - ends
    assert document.max() > 1 and (targets == -100).any()
    together = (document[:, :, None] == document[:, None, :]) & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    positions = torch.stack([torch.tensor([t - int((row[:t] < row[t]).sum()) for t in range(len(row))]) for row in document])
    logits = model(tokens, attention_mask=torch.where(together, 0.0, -math.inf)[:, None].double(), position_ids=positions).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def float32_off(model, tokens, targets, gradients, nudged):
    """How far off PyTorch's own gradients in float32 are, relative to each tensor's norm: the most of the model, which may be lucky, and of
    `nudged` more whose weights differ from it by at most half a unit in the last place of float32."""
    off = 0
    for seed in range(1 + nudged):
        rounded, random = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        for p in rounded.parameters() if seed else ():
            p.data *= 1 + (2 * torch.rand(p.shape, generator=random, dtype=p.dtype) - 1) * 2.0**-24
        rounded.float().zero_grad()
        loss_of(rounded, tokens, targets)[1].backward()
        got = published_form(rounded, lambda p: p.grad)
        off = max([off] + [abs(x - y) / of[0] for name, of in gradients.items() if of[0] for x, y in zip(of, got[name])])
    return off


def one_step(name, end=None, nudged=0):
    model, shapes = build(name)
    tokens, targets = batch(stream_of(name), 0)
    logits, loss = documents_loss(model, name, end) if end is not None else loss_of(model, tokens, targets)
    loss.backward()
    job = dict(JOB, data={"document_end": end, "reset_positions": True, "mask": True}) if end is not None else JOB
    gradients = published_form(model, lambda p: p.grad)
    largest = max(norm for norm, *_ in gradients.values())
    gradients = {name: digest if digest[0] > VANISHED * largest else [0, 0, 0, 0] for name, digest in gradients.items()}
    step = {"kind": "model", "config": MODELS[name], "job": job, "stream": TOKENS, "tensors": shapes, "loss": loss.item(),
            "logits": formula.digest("logits", logits), "gradients": gradients}
    off = 0 if end is not None else float32_off(model, tokens, targets, gradients, nudged)
    return dict(step, float32_off=float(f"{off:.2g}")) if off > FLOAT32_NOTED else step


def schedule(optimizer, how, steps):
    """torch's own schedulers. The first step of the warm-up has lr / warmup_steps, its last one lr."""
    warmup, lrs = how["warmup_steps"], torch.optim.lr_scheduler
    if how["schedule"] == "constant":
        return lrs.ConstantLR(optimizer, factor=1.0)
    rise = lrs.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    if how["schedule"] == "wsd":
        decay = how["decay_steps"]
        parts = [rise, lrs.ConstantLR(optimizer, factor=1.0), lrs.CosineAnnealingLR(optimizer, decay, how["min_lr"])]
        return lrs.SequentialLR(optimizer, parts, [warmup, steps - decay])
    if how["schedule"] == "cosine":
        fall = lrs.CosineAnnealingLR(optimizer, steps - warmup, how["min_lr"])
    else:
        fall = lrs.LinearLR(optimizer, 1.0, how["min_lr"] / how["lr"], steps - warmup)
    return lrs.SequentialLR(optimizer, [rise, fall], [warmup])


def training(name):
    kind, how, steps = TRAININGS[name]
    model, shapes = build(kind)
    of_decay = lambda name, p: p.dim() > 1 and not any(fnmatch.fnmatchcase(name, pattern) for pattern in how.get("no_decay", []))
    parts = [{"params": [p for name, p in model.named_parameters() if of_decay(name, p) == decays], "weight_decay": how["weight_decay"]
              if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(parts, lr=how["lr"], betas=(how["beta1"], how["beta2"]), eps=how["eps"], foreach=False)
    rate = schedule(optimizer, how, steps)
    stream, losses, norms, rates = stream_of(kind), [], [], []
    for step in range(steps):
        optimizer.zero_grad()
        _, loss = loss_of(model, *batch(stream, step))
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), how["clip"] or math.inf).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rate.step()
    of_state = lambda key: published_form(model, lambda p: optimizer.state[p][key])
    return {"kind": "training", "config": MODELS[kind], "job": dict(JOB, steps=steps, optimizer=how), "stream": TOKENS, "tensors": shapes,
            "losses": losses,
            "norms": norms, "rates": rates, "state": {"param": published_form(model, lambda p: p), "m": of_state("exp_avg"),
                                                      "v": of_state("exp_avg_sq")}}


def write(folder, only):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in MODELS:
        if not only or name in only:
            formula.write(f"{folder}/model-{name}.json", one_step(name), 10)
    for name, end in DOCUMENTS.items():
        if not only or name in only:
            formula.write(f"{folder}/model-{name}-documents.json", one_step(name, end), 10)
    for name in TRAININGS:
        if not only:
            formula.write(f"{folder}/training-{name}.json", training(name), 10)
