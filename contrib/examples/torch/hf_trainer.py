#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A script for the Trainer of Hugging Face's transformers, in which one line is hspmd's: the import of Trainer.

    python hf_trainer.py --steps 100
    hspmd run --local 3 -- python hf_trainer.py --steps 100

The model is a small Llama with random weights; data are drawn from a seed."""
import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from hspmd.hf import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--length", type=int, default=32)
parser.add_argument("--step-s", type=float, default=0, help="rest this long after each step")
parser.add_argument("--output", default="hf-output")
parser.add_argument("--in-order", action="store_true", help="take the samples in their order")
options = parser.parse_args()
torch.set_num_threads(1)

WORDS = 64


class Text(torch.utils.data.Dataset):
    """Words that follow one another by a rule, and texts of unequal lengths."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        words = (torch.arange(options.length) * (i % 7 + 1) + i) % WORDS
        labels = words.clone()
        labels[options.length - i % 9 :] = -100
        return {"input_ids": words, "labels": labels}


class Rest(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(options.step_s)


torch.manual_seed(1)
width = options.width
config = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=options.layers,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=options.length,
    attention_dropout=0 if options.in_order else 0.1,
)
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=2,  # a micro-batch
        gradient_accumulation_steps=6,  # of which so many are a step
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        logging_steps=1,
        save_steps=100,
        disable_tqdm=True,
        report_to="none",
        train_sampling_strategy="sequential" if options.in_order else "random",
    ),
    train_dataset=Text(),
    callbacks=[Rest()],
)
trainer.train()
