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
from unittest import mock

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

from torch.nn import init  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

import hspmd  # noqa: E402
from hspmd import disk, export, layout, local_step, replicated, sharded, shards  # noqa: E402
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


    def test_of_elastic_main(self):
        from hspmd import shards

        model = Net()
        optimizer = torch.optim.AdamW([{"params": [model.first.weight, model.last.bias]}, {"params": [model.norm.weight], "lr": 1.0}])
        model(torch.rand(4, 6)).sum().backward()
        optimizer.step()
        held, saved = shards.Held(model, optimizer, {}, torch.device("cpu")), Checkpoints(self.folder, 1)
        saved.save(6, 1, held.part((1, 6), 0, {}).text, held.pieces(0))
        saved.wait()
        self.assertIsNone(saved.failure)
        read = hspmd.load(self.folder)
        self.same(read["model"], dict(model.state_dict()))
        self.same(read["optimizer"], optimizer.state_dict())

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


class Parts(unittest.TestCase):
    """Of a divided model, as copies that are sent to peers and kept on disks."""

    TENSORS = {"a": torch.arange(7.0).bfloat16(), "b": torch.tensor(3.5), "c": torch.arange(6.0).view(2, 3).t(),
               "d": torch.ones(2, dtype=torch.int8)}  # fmt: skip

    def part(self, step, rank=0, factor=1):
        tensors = {name: t * factor for name, t in self.TENSORS.items()}
        shapes = {name: tuple(t.shape) for name, t in tensors.items()}
        boxes = {name: layout.whole(shape) for name, shape in shapes.items()}
        return shards.Part((1, step), rank, shapes, boxes, b"note", tensors)

    def assert_equal_parts(self, ours, theirs):
        self.assertEqual((ours.rank, ours.shapes, ours.boxes, ours.text), (theirs.rank, theirs.shapes, theirs.boxes, theirs.text))
        for name, t in theirs.tensors.items():
            self.assertTrue(torch.equal(ours.tensors[name], t) and ours.tensors[name].dtype == t.dtype, name)

    def test_a_copy_is_of_the_moment_and_can_be_sent(self):
        part = self.part(5, rank=2)
        copy = part.copy()
        sent = shards._described(copy.flat.clone(), copy.words)
        for t in part.tensors.values():
            t.zero_()
        self.assertEqual(sent.key, (1, 5))
        self.assert_equal_parts(copy, self.part(5, rank=2))
        self.assert_equal_parts(sent, self.part(5, rank=2))

    def test_what_forward_changes_is_copied_at_once(self):
        model = Net()
        held = shards.Held(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad]), {}, torch.device("cpu"))
        part = held.part((1, 5), 0, {})
        with torch.no_grad():
            for t in model.state_dict().values():
                t.copy_(t + 1)
        late = {name for name, t in part.tensors.items() if torch.equal(t, model.state_dict()[name.removeprefix("model/")])}
        self.assertEqual(late, {"model/first.bias", "model/first.weight", "model/last.bias", "model/norm.bias", "model/norm.weight"})

    def test_on_a_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(disk.parts(folder), [])
            places = Checkpoints(disk.folder_of_rank(folder), 0)
            for step in (3, 4):
                disk.save(places, 100 + step, [self.part(step, factor=step).copy(), self.part(step, rank=1, factor=-step).copy()])
                places.copied()
                places.wait()
            self.assertIsNone(places.failure)
            found = disk.parts(folder)
            self.assertEqual([p.key for p in found], [(-103, 3), (-103, 3), (-104, 4), (-104, 4)])
            self.assert_equal_parts(found[3], self.part(4, rank=1, factor=-4))
            # What a rank still has of the same step comes first; what was saved at another time is not mixed with it.
            offers = [(i, *p.header()) for i, p in enumerate([*found, self.part(4)])]
            self.assertEqual(layout.choose([o[:4] for o in offers]), [4])


class Sums(unittest.TestCase):
    def test_large_and_small_gradients(self):
        """Of two ranks with equal gradients: where they are, also if they lie otherwise in memory, or in a bucket of many."""
        el = replicated.Elastic.__new__(replicated.Elastic)
        el.size, el.clip, el._weight = 2, None, 4.0
        el._group = mock.Mock(sum=lambda t: t.mul_(2), total=lambda *numbers: [2 * n for n in numbers])
        large, turned, small = torch.rand(600, 600), torch.rand(700, 600).t(), torch.rand(3)
        el._parameters = [torch.nn.Parameter(torch.zeros(t.shape)) for t in (small, large, turned, small, small)]
        for p, grad in zip(el._parameters, (small, large, turned, small, None)):
            p.grad = None if grad is None else grad.clone(memory_format=torch.preserve_format)
        self.assertFalse(el._parameters[2].grad.is_contiguous())
        el._sum_gradients()
        for p, grad in zip(el._parameters, (small, large, turned, small)):
            self.assertTrue(torch.equal(p.grad, grad / 4))
        self.assertIsNone(el._parameters[4].grad)


class FirstValues(unittest.TestCase):
    def test_only_parameters_get_none(self):
        """Whatever PyTorch's modules draw with; what else is drawn comes out."""
        p, plain = torch.nn.Parameter(torch.full((4, 4), 7.0)), torch.zeros(4)
        with sharded.NoFirstValues(), torch.no_grad():
            for fill in (init.kaiming_uniform_, init.kaiming_normal_, init.xavier_uniform_, init.xavier_normal_, init.normal_):
                self.assertIs(fill(p), p)
            init.uniform_(tensor=p)
            p.data.mul_(2)
            p.uniform_()
            plain.uniform_(1, 2)
            made = torch.nn.TransformerEncoderLayer(8, 2, 16)
        self.assertTrue(torch.equal(p, torch.full((4, 4), 14.0)))
        self.assertTrue(bool((plain >= 1).all()))
        self.assertEqual(made.linear1.weight.shape, (16, 8))


class Divided(unittest.TestCase):
    """Six ranks, of which this is the first."""

    def setUp(self):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=6)
        self.addCleanup(torch.distributed.destroy_process_group)
        self.mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 3))

    def divided(self, tensor, *places):
        return DTensor.from_local(tensor, self.mesh, places, run_check=False)

    def test_each_element_counts_once(self):
        split, whole = Shard(0), Replicate()
        for places, share in (((split, split), 1), ((split, whole), 1 / 3), ((whole, split), 1 / 2), ((whole, whole), 1 / 6)):
            self.assertAlmostEqual(shards.share(self.divided(torch.ones(6), *places), 6), share)
        self.assertAlmostEqual(shards.share(torch.ones(6), 6), 1 / 6)

    def make_steps(self, kind, **options):
        """With the parts alone, and with what stands for the whole: parameters and state are equal, to the bit, and the whole's state is
        divided as its parameter."""
        parts = [torch.nn.Parameter(torch.rand(shape)) for shape in ((4, 3), (5,), (0, 3))]
        whole = [torch.nn.Parameter(self.divided(p.detach().clone(), Shard(0), Replicate())) for p in parts[1:]]
        whole.insert(0, torch.nn.Parameter(parts[0].detach().clone()))  # one that is not divided
        alone, together = kind(parts, lr=0.1, **options), kind(whole, lr=0.1, **options)
        step = local_step.local_step(together)
        self.assertNotEqual(step, together.step)
        for _ in range(3):
            for p, q in zip(parts, whole):
                p.grad = torch.randn(p.shape)
                q.grad = p.grad.clone() if q is whole[0] else self.divided(p.grad.clone(), Shard(0), Replicate())
            alone.step()
            step()
        for p, q in zip(parts, whole):
            self.assertTrue(torch.equal(p, shards.local(q)))
            self.assertEqual(list(alone.state[p]), list(together.state[q]))
            for key, value in together.state[q].items():
                self.assertTrue(torch.equal(torch.as_tensor(alone.state[p][key]), torch.as_tensor(shards.local(value))), key)
                self.assertEqual(isinstance(value, DTensor), q is not whole[0] and alone.state[p][key].dim() > 0, key)
        self.assertEqual([id(q) for q in together.param_groups[0]["params"]], [id(q) for q in whole])

    def test_steps_of_parts(self):
        for kind in local_step._OF_ELEMENTS:
            with self.subTest(kind):
                self.make_steps(kind)
        self.make_steps(torch.optim.SGD, momentum=0.9)
        self.make_steps(torch.optim.AdamW, amsgrad=True)

    def test_steps_as_the_user_chose(self):
        """All tensors at once, one by one, or fused: with parts as PyTorch decides it for DTensors, also where it would decide otherwise
        for plain tensors, as on a GPU."""
        for given, wanted in (({}, "single"), ({"foreach": True}, "multi"), ({"foreach": False}, "single"), ({"fused": True}, "fused")):
            p = torch.nn.Parameter(self.divided(torch.rand(3), Shard(0), Replicate()))
            optimizer = torch.optim.SGD([p], lr=0.1, **given)
            before, seen = dict(optimizer.param_groups[0]), []
            p.grad = self.divided(torch.ones(3), Shard(0), Replicate())
            with contextlib.ExitStack() as stack:
                everywhere = mock.patch("torch.optim.optimizer._get_foreach_kernels_supported_devices", lambda: ["cpu"])
                stack.enter_context(everywhere)
                for name, of in (("single", "_single_tensor_sgd"), ("multi", "_multi_tensor_sgd"), ("fused", "_fused_sgd")):
                    stack.enter_context(mock.patch(f"torch.optim.sgd.{of}", lambda *_, name=name, **__: seen.append(name)))
                local_step.local_step(optimizer)()
            self.assertEqual(seen, [wanted], given)
            self.assertEqual(optimizer.param_groups[0], before)

    def test_steps_of_others_are_their_own(self):
        class Other(torch.optim.SGD):
            pass

        for kind, shape in ((Other, (3,)), (torch.optim.Adafactor, (3,)), (torch.optim.SGD, ())):
            optimizer = kind([torch.nn.Parameter(self.divided(torch.rand(shape), Replicate(), Replicate()))])
            self.assertEqual(local_step.local_step(optimizer), optimizer.step)


if __name__ == "__main__":
    unittest.main()
