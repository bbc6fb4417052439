# SPDX-License-Identifier: Apache-2.0
"""Small configurations of every model type, drawn at random within what the type allows: one head or many that share keys and values,
windows of one token, odd widths, tied or not, biases, ways to scale rotations, experts. Optional keys are left out now and then, so that
what an absent key means is compared, too."""

EITHER = (False, True)
DENSE = {"attention_bias": EITHER, "mlp_bias": EITHER}
# From qwen2 on: the layers from max_window_layers on have the window.
LATER_WINDOWS = {"use_sliding_window": EITHER, "sliding_window": (1, 3, 100), "max_window_layers": range(5)}
GEMMA = {"hidden_activation": ("gelu_pytorch_tanh", "gelu", "silu"), "sliding_window": (1, 3, 100), "query_pre_attn_scalar": (1, 6, 256),
         "final_logit_softcapping": (None, 0.5, 30.0), "attention_bias": EITHER}
# Keys of one type, each with the values that are drawn from.
KEYS = {
    "gpt2": {"n_inner": range(3, 50), "activation_function": ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast"),
             "layer_norm_epsilon": (1e-6, 1e-3)},
    "gpt_neox": {"hidden_act": ("gelu", "gelu_new"), "use_parallel_residual": EITHER, "attention_bias": EITHER,
                 "layer_norm_eps": (1e-5, 1e-3), "rotary_pct": (0.5, 1.0), "rotary_emb_base": (100, 10000)},
    "llama": DENSE,
    "mistral": {"sliding_window": (None, 1, 2, 7, 100)},
    "mixtral": {"sliding_window": (None, 1, 4)},
    "qwen2": LATER_WINDOWS,
    "qwen3": dict(LATER_WINDOWS, attention_bias=EITHER),
    "qwen2_moe": {"use_sliding_window": EITHER, "sliding_window": (1, 3, 100), "max_window_layers": range(5), "norm_topk_prob": EITHER,
                  "decoder_sparse_step": (1, 2, 3), "qkv_bias": EITHER, "shared_expert_intermediate_size": range(2, 20)},
    "qwen3_moe": {"use_sliding_window": EITHER, "sliding_window": (1, 3, None), "decoder_sparse_step": (1, 2, 3), "norm_topk_prob": EITHER,
                  "attention_bias": EITHER},
    "smollm3": dict(DENSE, use_sliding_window=EITHER, sliding_window=(1, 3, 100), no_rope_layer_interval=range(1, 5)),
    "olmo2": {"attention_bias": EITHER},
    "phi3": {"sliding_window": (None, 1, 2, 7, 100)},
    "gemma2": dict(GEMMA, attn_logit_softcapping=(None, 0.5, 30.0)),
    "gemma3_text": dict(GEMMA, sliding_window_pattern=range(1, 5), rope_local_base_freq=(100.0, 5000.0)),
    "gpt_oss": {"sliding_window": (1, 5, 128), "attention_bias": EITHER, "swiglu_limit": (7.0, 0.5)},
    "deepseek_v2": {"topk_method": ("greedy", "group_limited_greedy"), "attention_bias": EITHER},
    "deepseek_v3": {"norm_topk_prob": EITHER, "rope_interleave": EITHER, "attention_bias": EITHER},
}
# Left out in some of the drawn configurations: the type's own default then holds.
OPTIONAL = ("hidden_act", "hidden_activation", "activation_function", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
            "tie_word_embeddings", "rope_theta", "n_inner", "max_window_layers", "sliding_window_pattern", "rope_local_base_freq",
            "norm_topk_prob", "routed_scaling_factor", "decoder_sparse_step", "use_parallel_residual", "rotary_emb_base", "attention_bias",
            "mlp_bias", "no_rope_layer_interval", "swiglu_limit", "use_sliding_window", "final_logit_softcapping",
            "attn_logit_softcapping", "rope_interleave", "n_shared_experts", "qkv_bias")


def rotation(random, dims, kinds):
    """rope_scaling or rope_parameters. Transformers cannot stretch the base of two dimensions."""
    kind, theta = random.choice([k for k in kinds if k != "dynamic" or dims > 2]), random.choice((100.0, 500.0, 1e4, 1e6))
    scaling = {"rope_type": kind, "factor": random.choice((1.0, 1.5, 4.0))} if kind != "default" else {"rope_type": kind}
    if kind == "llama3":
        low = random.choice((0.5, 1.0))
        scaling |= {"low_freq_factor": low, "high_freq_factor": random.choice((2, 4)) * low, "original_max_position_embeddings": 8}
    if kind == "yarn":
        scaling |= random.choice(({}, {"original_max_position_embeddings": 8}, {"original_max_position_embeddings": 16, "truncate": False}))
        scaling |= random.choice(({}, {"beta_fast": 4.0, "beta_slow": 0.5}, {"attention_factor": 0.8},
                                  {"mscale": 0.7, "mscale_all_dim": 0.5}))
    return random.choice(({"rope_scaling": scaling, "rope_theta": theta}, {"rope_parameters": dict(scaling, rope_theta=theta)}))


def long_rotation(random, width):
    """Of Phi 3, which has factors for each frequency, for short and long texts."""
    share = random.choice([s for s in (1.0, 0.5, 0.75) if width * s % 2 == 0])
    factors = [[random.choice((1.0, 1.5, 4.0)) for _ in range(int(width * share) // 2)] for _ in range(2)]
    scaling = {"type": "longrope", "short_factor": factors[0], "long_factor": factors[1]}
    return random.choice(({"partial_rotary_factor": share},
                          {"partial_rotary_factor": share, "original_max_position_embeddings": random.choice((8, 32)),
                           "max_position_embeddings": 64, "rope_scaling": scaling}))


def experts(random, count_key):
    count = random.randint(1, 6)
    return {count_key: count, "num_experts_per_tok": random.randint(1, count), "moe_intermediate_size": random.randint(2, 12),
            "router_aux_loss_coef": 0.0}


def latent(random, rotated):
    """Transformers needs even widths to rotate pairs as complex numbers."""
    groups = random.choice((1, 2, 3))
    top, each = random.randint(1, groups), random.choice((2, 3))
    nope = random.choice((2, 6))
    return {"n_routed_experts": groups * each, "num_experts_per_tok": random.randint(1, min(each * top, 4)), "n_group": groups,
            "topk_group": top, "moe_intermediate_size": random.randint(2, 12), "n_shared_experts": random.randint(1, 3),
            "first_k_dense_replace": random.randint(0, 3), "routed_scaling_factor": random.choice((1.0, 2.5)),
            "kv_lora_rank": 2 * random.randint(1, 5), "q_lora_rank": random.choice((None, 5)), "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rotated, "v_head_dim": random.randint(1, nope + rotated), "head_dim": rotated}


def sizes(random, kind):
    heads, width = random.choice((1, 2, 3, 4, 6)), random.choice((2, 4, 6, 8))
    config = {"vocab_size": random.randint(17, 90), "num_hidden_layers": random.randint(1, 4), "num_attention_heads": heads,
              "hidden_size": heads * width, "intermediate_size": random.randint(3, 40), "max_position_embeddings": random.choice((19, 64))}
    if kind == "gpt2":
        names = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd",
                 "max_position_embeddings": "n_positions", "vocab_size": "vocab_size"}
        return {names[key]: value for key, value in config.items() if key in names}, width
    if kind != "gpt_neox":
        config["num_key_value_heads"] = random.choice([n for n in range(1, heads + 1) if heads % n == 0])
    return config, width


def config_of(random, kind):
    """A config.json of a model type; random: of random.Random."""
    config, width = sizes(random, kind)
    config |= {"model_type": kind, "tie_word_embeddings": random.choice(EITHER), "pad_token_id": None}
    config |= {key: random.choice(values) for key, values in KEYS[kind].items()}
    if kind == "gpt2":
        config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    elif kind == "gpt_neox":
        config |= {"attention_dropout": 0.0, "hidden_dropout": 0.0, "rotary_pct": 1.0 if width % 4 else config["rotary_pct"]}
    else:
        config["rms_norm_eps"] = random.choice((1e-6, 1e-3))
        if kind not in ("gemma2", "gemma3_text", "gpt_oss"):
            config["hidden_act"] = random.choice(("silu", "gelu", "gelu_new"))
        if kind in ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss"):
            width = config["head_dim"] = random.choice((width, 4, 10))
    if kind == "mixtral":
        config |= experts(random, "num_local_experts")
        del config["moe_intermediate_size"]
    if kind in ("qwen2_moe", "qwen3_moe", "gpt_oss"):
        config |= experts(random, "num_local_experts" if kind == "gpt_oss" else "num_experts")
    kinds = ("default", "linear", "dynamic", "llama3", "yarn")
    if kind.startswith("deepseek"):
        width, kinds = random.choice((2, 4, 6)), ("default", "linear", "yarn")
        config |= dict(latent(random, width), num_key_value_heads=config["num_attention_heads"])
    if kind == "phi3":
        config |= long_rotation(random, width)
    elif kind == "gemma3_text":
        config |= random.choice(({}, {"rope_theta": 500.0}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}))
    elif kind not in ("gpt2", "gpt_neox"):
        config |= rotation(random, width, kinds)
    if kind in ("gemma2", "gemma3_text", "gpt_oss") and random.random() < 0.4:
        config["layer_types"] = random.choices(("full_attention", "sliding_attention"), k=config["num_hidden_layers"])
    if kind == "smollm3" and random.random() < 0.4:
        config["no_rope_layers"] = random.choices((0, 1), k=config["num_hidden_layers"])
    return {key: value for key, value in config.items() if key not in OPTIONAL or random.random() < 0.8}
