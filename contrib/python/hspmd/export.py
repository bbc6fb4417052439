# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for PyTorch without hspmd: load() reads one, `python -m hspmd.export FOLDER FILE` writes one for torch.load().
(`hspmd checkpoint export` writes the model as safetensors.)"""
import argparse
import io
import os
import pickle

import torch

from hspmd import checkpoints, state


def load(folder):
    """The newest complete checkpoint of a folder, with all tensors whole and in memory, however many ranks have written it:
    { "step", "model" and "optimizer": what their load_state_dict() takes, "extra": the same of the schedule and what else was named }.
    Load only checkpoints that you trust: what is not a tensor is unpickled."""
    with checkpoints.Saved(folder) as saved:
        model, others = saved.read()
        if saved.note is None:  # of a job of hspmd's own trainer
            return {"step": saved.step, "model": model}
        note = pickle.loads(saved.note)
    model = {name: state.as_described(model[name], *form) for name, form in note["model"].items() if name in model}
    model |= {name: model[first] for name, first in note["aliases"].items()}
    optimizer_of = state.optimizer_of
    if "groups" in note:
        from hspmd.shards import optimizer_of
    extra = {name: torch.load(io.BytesIO(text), map_location="cpu", weights_only=False) for name, text in note["others"].items()}
    return {"step": saved.step, "model": model, "optimizer": optimizer_of(note, others), "extra": extra}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m hspmd.export", description="writes a checkpoint for torch.load()")
    parser.add_argument("folder", help="of checkpoints")
    parser.add_argument("file")
    options = parser.parse_args(arguments)
    saved = load(options.folder)
    torch.save(saved, options.file + ".tmp")
    os.replace(options.file + ".tmp", options.file)
    print(f"step {saved['step']}: {len(saved['model'])} tensors of the model are in {options.file}")


if __name__ == "__main__":
    main()
