#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a PyTorch loop (contrib/python): what is read, by the loop itself, by hspmd.load() and by hspmd, is what there was when it
was saved, although training went on; of several ranks that have parts, none is left out. Skipped (exit 77) where Python has no torch."""
import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILD = os.path.abspath(os.environ.get("builddir", "."))
HSPMD = os.environ.get("HSPMD_BIN", os.path.join(BUILD, "hspmd"))
sys.path[:0] = [os.path.join(TOP, "contrib", "python"), os.path.join(TOP, "tests")]
os.environ.setdefault("HSPMD_LIBRARY", os.path.join(BUILD, ".libs", "libhspmd.so.0"))
os.environ.pop("HSPMD_CHECKPOINT", None)
from other_python import go_on_elsewhere  # noqa: E402

try:
    import torch
except ImportError:
    go_on_elsewhere("checkpoints of PyTorch are not tried: there is none")

import hspmd  # noqa: E402
from hspmd import export  # noqa: E402
from hspmd.checkpoints import Checkpoints, Piece, Saved  # noqa: E402

torch.set_num_threads(1)


class Net(torch.nn.Module):
    """A weight with two names, running statistics, a frozen tensor, one that is not contiguous, one of a type that files do not know."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.arange(3.0).half(), requires_grad=False)
        self.register_buffer("turned", torch.arange(12).view(3, 4).t())
        self.register_buffer("odd", torch.arange(4.0) * (1 + 2j))

    def forward(self, x):
        return self.last(torch.nn.functional.dropout(self.norm(self.first(x)), 0.2))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, i):
        return torch.sin(torch.arange(6.0) * i)


def train(folder, steps, *, save_at=None, seed=1, **options):
    """Returns (losses after so many steps, the state before step save_at)."""
    torch.manual_seed(seed)
    model, losses, then = Net(), {}, None
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    el = hspmd.Elastic(model, optimizer, batch=4, micro=2, scheduler=scheduler, folder=folder, **options)
    for x in el.batches(Numbers(), steps=steps):
        if el.step == save_at and then is None:
            then = copied(model.state_dict()), copied(optimizer.state_dict())
            el._save([el._shared])
            waits(el, model, then)
        el.backward(model(x).square().mean())
        optimizer.step()
        losses[el.step] = el.loss
    if "first" in repr(el._shared.copied):
        raise AssertionError("nobody has waited for the copies")
    return losses, then


def waits(el, model, then):
    """The loop waits for the copies before the first change of what is being saved; often they have been made by then anyway. Buffers,
    which forward() changes, are copied at once."""
    wait, live = el._shared.copied, {buffer.data_ptr() for buffer in model.buffers()}
    if any(tensor.data_ptr() in live for tensor in el._shared._kept):
        raise AssertionError("a buffer is read while forward() may change it")

    def first():
        el._shared.copied = wait
        if not torch.equal(then[0]["first.weight"], model.first.weight):
            raise AssertionError("the step was made before the copies")
        wait()

    el._shared.copied = first


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return [copied(v) for v in value] if isinstance(value, list) else value


class Kept(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hspmd-saved.")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "checkpoints")

    def same(self, a, b, at=""):
        self.assertIs(type(a), type(b), at)
        if isinstance(a, torch.Tensor):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype), at)
            self.assertTrue(torch.equal(a, b), at)
        elif isinstance(a, dict):
            self.assertEqual(list(sorted(a, key=str)), list(sorted(b, key=str)), at)
            for key in a:
                self.same(a[key], b[key], f"{at}/{key}")
        else:
            self.assertEqual(a, b, at)

    def hspmd(self, *arguments):
        return subprocess.run([HSPMD, "checkpoint", *arguments], check=True, capture_output=True, text=True).stdout

    def test_resumed(self):
        undisturbed = train(None, 7)[0]
        train(self.folder, 5)
        resumed = train(self.folder, 7, seed=2)[0]
        self.assertEqual([resumed[step] for step in (6, 7)], [undisturbed[step] for step in (6, 7)])

    def test_on_the_nodes_disk(self):
        local, undisturbed = self.folder + "-local", train(None, 7)[0]
        train(self.folder, 3, local=local)
        self.assertEqual([Checkpoints(folder, 1).newest() for folder in (self.folder, local)], [3, 3])
        train(None, 5, local=local, seed=2)
        resumed = train(self.folder, 7, local=local, seed=3)[0]
        self.assertEqual(list(resumed), [5, 6, 7])
        self.assertEqual([resumed[step] for step in (6, 7)], [undisturbed[step] for step in (6, 7)])

    def test_of_the_moment(self):
        _, (model, optimizer) = train(self.folder, 3, save_at=2)
        listed = json.loads(self.hspmd("list", "--json", self.folder))
        self.assertEqual([c["step"] for c in listed], [2, 3])
        subprocess.run(["rm", "-r", os.path.join(self.folder, "step-0000000003-g0")], check=True)
        saved = hspmd.load(self.folder)
        self.assertEqual(saved["step"], 2)
        self.same(saved["model"], model)
        self.same(saved["optimizer"], optimizer)
        self.assertEqual(saved["extra"]["scheduler"]["last_epoch"], 2)
        file = self.folder + ".pt"
        with contextlib.redirect_stdout(io.StringIO()):
            export.main([self.folder, file])
        self.same(torch.load(file)["model"], model)
        self.hspmd("verify", self.folder)
        self.hspmd("export", self.folder, "-o", self.folder + "/out")
        with open(self.folder + "/out/model.safetensors", "rb") as exported:
            head = json.loads(exported.read(struct.unpack("<Q", exported.read(8))[0]))
        self.assertEqual(head["frozen"]["dtype"], "F16")
        self.assertEqual(head["turned"]["shape"], [4, 3])


    def save_by_three(self, folders, lacks=None):
        """Ranks 0, 1 and 2 of this process. Returns their failures."""
        store, ranks = torch.distributed.HashStore(), []
        for rank, folder in enumerate(folders):
            one, part = Checkpoints(folder, 1), torch.full((1, 2), float(rank))
            one.rank, one.size = rank, 3
            piece = Piece("w", part, parameter=True, shape=(3, 2), box=((rank, 0), (1, 2)))
            one.save(8, 2, b"note", [] if rank == lacks else [piece], store)
            one.copied()
            part.zero_()
            ranks.append(one)
        for one in ranks:
            one.wait()
        return [one.failure for one in ranks]

    def test_parts_of_ranks(self):
        self.assertEqual(self.save_by_three([self.folder] * 3), [None] * 3)
        with Saved(self.folder) as saved:
            self.assertEqual((saved.step, saved.note), (8, b"note"))
            self.assertEqual(saved.read()[0]["w"].tolist(), [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])

    def test_a_rank_cannot_write(self):
        failures = self.save_by_three([self.folder, "/proc/none", self.folder])
        self.assertRegex(str(failures[0]), "/proc/none")
        self.assertRegex(str(failures[1]), "/proc/none")
        self.assertEqual(Checkpoints(self.folder, 1).newest(), -1)

    def test_a_part_is_missing(self):
        self.assertRegex(str(self.save_by_three([self.folder] * 3, lacks=1)[0]), "w .* is in no shard")
        self.assertEqual(Checkpoints(self.folder, 1).newest(), -1)


if __name__ == "__main__":
    unittest.main()
