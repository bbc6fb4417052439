#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hspmd checkpoint export`, loaded by Hugging Face's transformers: every tensor has a place there, and the logits are ours; `import`
and a job's `init` bring it back. A third of the cases, which HSPMD_DRAW chooses; with HSPMD_LONG=1 all. Skipped (exit 77) where Python
has no transformers."""
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from other_python import go_on_elsewhere  # noqa: E402

try:
    import torch
    import transformers
except ImportError:
    go_on_elsewhere("exported models are not loaded with transformers: there is none")

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
BUILD = os.path.abspath(os.environ.get("builddir", "."))
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../contrib/examples/models")
HSPMD = os.environ.get("HSPMD_BIN", os.path.join(BUILD, "hspmd"))
TOLERANCE = 1e-4
TOKENS = [(7 * i * i + 3 * i + 1) % 256 for i in range(48)]
SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2,
         "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 3,
        "n_head": 4,
        "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def model(kind, architecture, **more):
    return dict(SIZES, model_type=kind, architectures=[architecture]) | more


LATENT = {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
          "first_k_dense_replace": 1,
          "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8}
# Name -> (config.json, options of export).
CASES = {
    "gpt2": (dict(GPT2, tie_word_embeddings=True), []),
    "gpt2 untied": (dict(GPT2, tie_word_embeddings=False), []),
    "llama": (model("llama", "LlamaForCausalLM", tie_word_embeddings=False), ["--max-file-bytes", "100000"]),
    "llama tied": (model("llama", "LlamaForCausalLM", tie_word_embeddings=True), []),
    "mistral": (model("mistral", "MistralForCausalLM", tie_word_embeddings=False, sliding_window=16), []),
    "qwen2": (model("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True), ["--max-file-bytes", "50000"]),
    "mixtral": (model("mixtral", "MixtralForCausalLM", tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2),
                ["--max-file-bytes", "100000"]),
    "llama scaled": (model("llama", "LlamaForCausalLM", tie_word_embeddings=False, rope_scaling={"rope_type": "llama3", "factor": 8.0,
                                                                                                 "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 16}), []),
    "qwen3": (model("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=False, head_dim=16), []),
    "qwen3_moe": (model("qwen3_moe", "Qwen3MoeForCausalLM", tie_word_embeddings=False, head_dim=16, num_experts=4, num_experts_per_tok=2,
                        moe_intermediate_size=24,
                        norm_topk_prob=True), []),
    "qwen2_moe": (model("qwen2_moe", "Qwen2MoeForCausalLM", tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2,
                        moe_intermediate_size=24, shared_expert_intermediate_size=40), []),
    "smollm3": (model("smollm3", "SmolLM3ForCausalLM", tie_word_embeddings=True, pad_token_id=None), []),
    "olmo2": (model("olmo2", "Olmo2ForCausalLM", tie_word_embeddings=False, pad_token_id=None), []),
    "phi3": (model("phi3", "Phi3ForCausalLM", tie_word_embeddings=False, pad_token_id=None), ["--max-file-bytes", "100000"]),
    "gemma2": (model("gemma2", "Gemma2ForCausalLM", tie_word_embeddings=True, head_dim=16, sliding_window=16,
                     hidden_activation="gelu_pytorch_tanh", pad_token_id=None), []),
    "gemma3": (model("gemma3_text", "Gemma3ForCausalLM", tie_word_embeddings=True, head_dim=16, sliding_window=16,
                     hidden_activation="gelu_pytorch_tanh", pad_token_id=None), []),
    "gpt_neox": ({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 256, "hidden_size": 64,
                  "intermediate_size": 96, "num_hidden_layers": 3,
                  "num_attention_heads": 4, "max_position_embeddings": 64, "attention_dropout": 0.0, "hidden_dropout": 0.0}, []),
    "gpt_oss": (model("gpt_oss", "GptOssForCausalLM", tie_word_embeddings=False, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                      sliding_window=16, pad_token_id=None,
                      rope_scaling=None), []),
    "deepseek_v2": (model("deepseek_v2", "DeepseekV2ForCausalLM", tie_word_embeddings=False, **LATENT), []),
    "deepseek_v3": (model("deepseek_v3", "DeepseekV3ForCausalLM", tie_word_embeddings=False, n_group=2, topk_group=1, **LATENT), []),
}


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


def train(name, steps, lr=3e-3, **more):
    """Losses of a short run; its checkpoint is in NAME-ckpt."""
    job = {"format": "hspmd-job-1", "model": "config.json", "data": {"train": ["data.bin"], "kind": "bytes"}, "seq_len": 32,
           "global_batch": 4, "steps": steps, "seed": 3,
           "optimizer": {"type": "adamw", "lr": lr, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0.0}, "precision": "fp32",
           "checkpoint": {"shared": os.path.abspath(name + "-ckpt"), "every_s": 3600, "replicas": 0}}
    job.update(more)
    with open(name + ".json", "w") as f:
        json.dump(job, f)
    run(HSPMD, "run", "--job", name + ".json", "--local", "2", "--output", name)
    with open(name + "/metrics.jsonl") as f:
        return [line["loss"] for line in map(json.loads, f) if "loss" in line]


def ours(folder):
    out = run(os.path.join(BUILD, "tests/unit/logits"), folder, ",".join(map(str, TOKENS)))
    return torch.tensor(json.loads(out[out.index("[["):out.rindex("]]") + 2]))


def theirs(folder):
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, output_loading_info=True,
                                                                     attn_implementation="eager")
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            sys.exit(f"{folder}: {what}: {info[what]}")
    loaded.eval()
    with torch.no_grad():
        return loaded(torch.tensor([TOKENS])).logits[0]


def newest(path):
    return sorted(glob.glob(path + "/**/manifest.json", recursive=True))[-1][: -len("/manifest.json")]


def check(name, config, options):
    with open("config.json", "w") as f:
        json.dump(config, f)
    train("first", 4)
    run(HSPMD, "checkpoint", "export", "first-ckpt", "-o", "exported", *options)
    if options and len(glob.glob("exported/model-*.safetensors")) < 2:
        sys.exit(f"{name}: it was not split into several files")
    mine = ours(newest("first-ckpt"))
    off = (mine - theirs("exported")).abs().max().item()
    if not off <= TOLERANCE:
        sys.exit(f"{name}: logits differ by {off:.3g}")
    run(HSPMD, "checkpoint", "import", "exported", "-o", "imported")
    if not torch.equal(ours(newest("imported")), mine):
        sys.exit(f"{name}: imported weights are not those that were exported")
    return off


def check_init(name):
    """A job that starts from what another ended with begins at the same loss: the other's next to nothing of a learning rate changed
    nothing."""
    ended = train("still", 1, lr=1e-12)[0]
    run(HSPMD, "checkpoint", "export", "still-ckpt", "-o", "still-exported")
    begun = train("second", 1, lr=1e-12, init=os.path.abspath("still-exported"))[0]
    if not abs(begun - ended) <= 1e-6 * ended:
        sys.exit(f"{name}: began at {begun} from what ended at {ended}")


def drawn(names, few):
    """Some of the names, by the commit (tests/unit/draw.h); with HSPMD_LONG all."""
    first = int(os.environ.get("HSPMD_DRAW", "0")) % len(names)
    return names if os.environ.get("HSPMD_LONG") == "1" else (names + names)[first:first + few]


def check_examples():
    """Each model of contrib/examples can be built by transformers, and there is a case of its type."""
    types = {config["model_type"] for config, _ in CASES.values()} | {"gemma3"}  # which is exported as gemma3_text
    for folder in glob.glob(EXAMPLES + "/*"):
        config = transformers.AutoConfig.from_pretrained(folder)
        if config.model_type not in types:
            sys.exit(f"no case of this test is of type {config.model_type}")
        with torch.device("meta"):
            transformers.AutoModelForCausalLM.from_config(config)


def main():
    torch.set_num_threads(1)
    check_examples()
    worst = {}
    chosen = drawn(list(CASES), 7)
    begun = drawn(chosen, 3)
    print("tried: " + ", ".join(chosen) + "; init with " + ", ".join(begun))
    for name in chosen:
        config, options = CASES[name]
        with tempfile.TemporaryDirectory(prefix="hspmd-export-") as folder:
            os.chdir(folder)
            os.environ["HSPMD_CONTACTS"] = os.path.join(folder, "contacts")
            with open("data.bin", "wb") as f:
                f.write(bytes((i * i + i // 7) % 256 for i in range(20000)))
            worst[name] = check(name, config, options)
            if name in begun:
                check_init(name)
            os.chdir("/")
    print(f"transformers {transformers.__version__} computes our logits: largest differences " + ", ".join(f"{k} {v:.1e}" for k,
                                                                                                           v in worst.items()))


main()
