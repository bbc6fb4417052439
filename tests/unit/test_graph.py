#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""contrib/python/hspmd/graph.py: its own example trains the same under every plan; whatever fails is an exception with hspmd's words; a
job's checkpoint and losses are read as hspmd itself reads them."""
import array
import gc
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
sys.path.insert(0, os.path.join(TOP, "contrib", "python"))
os.environ.setdefault("HSPMD_LIBRARY", os.path.join(BUILD, ".libs", "libhspmd.so.0"))

from hspmd import graph, library  # noqa: E402

STEPS = 20


def read(name, sample, start, count):
    """Points of three groups, and which group a point is of."""
    group = [(sample * 7 + i) % 3 for i in range(start, start + count)]
    if name == "class":
        return group
    return [g - 1 + (sample * 31 + i * 17) % 10 / 30 for i, g in enumerate(group, start) for _ in range(2)]


def example():
    """The names that the example in the module's docstring defines, with the reader above."""
    names = {}
    lines = [line for line in graph.__doc__.split("\n") if line.startswith("    ")]
    code = "\n".join(line[4:] for line in lines).replace("lambda name, sample, start, count: ...", "read")
    names["read"] = read
    exec(code, names)  # pylint: disable=exec-used
    return names


def train(plan, net):
    training = graph.Training(net["build"], layers=2, cluster=graph.local(3), optimizer={"lr": 0.01})
    training.plan(plan)
    return training.run(STEPS, read)


def plan(pipelines):
    return {"format": "hspmd-plan-1", "global_batch": 24, "micro_batch": 4, "seq_len": 8, "schedule": "1f1b", "zero_stage": 0,
            "pipelines": pipelines}  # fmt: skip


class Trains(unittest.TestCase):
    def test_example(self):
        net = example()
        losses = net["losses"]
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertEqual(net["w1"].shape, (64, 2))
        self.assertEqual(sorted({d for p in net["plan"]["pipelines"] for s in p["stages"] for d in s["devices"]})[0][:5], "local")
        alone = train(plan([{"micro_batches": 6, "stages": [{"layers": [0, 2], "devices": ["local:0"]}]}]), net)
        stages = [{"layers": [0, 1], "devices": ["local:0-1"], "shard_ratio": [3, 1]}, {"layers": [1, 2], "devices": ["local:2"]}]
        unlike = train(plan([{"micro_batches": 6, "stages": stages}]), net)
        for a, b, c in zip(losses, alone, unlike):
            self.assertAlmostEqual(a, b, delta=1e-6 * b)
            self.assertAlmostEqual(c, b, delta=1e-6 * b)
        self.assertIn("local:2", net["training"].program("local:0"))

    def test_nets_with_options(self):
        shapes = []

        def build(net):
            image = net.float_input("image", (3, 8, 8))
            x = net.conv2d(image, net.parameter("conv", (4, 3, 3, 3), deviation=0.2), padding=1)
            x = net.max_pool2d(net.relu(x), 2)
            x = net.reshape(x, (net.samples, 4, 16))
            gain = net.parameter("g", (4,), mean=1).no_decay()
            x = net.layer_norm(net.transpose(x, (0, 2, 1)) * 2.0, gain, net.parameter("b", (4,)), 1e-5)
            x = x + net.attend(x, x, x, 2, causal=True)
            shapes.append(x.shape[1:])
            x = net.mean(x, [1], keep=True) - 0.5 * net.max(x, [1], keep=True)
            logits = net.linear(net.concat([x, net.exp(x / 2)], 2), net.parameter("out", (3, 8), deviation=0.3))
            net.cross_entropy(logits, net.integer_input("label", (1,)), smoothing=0.1, ignored=2)

        def images(name, sample, start, count):
            if name == "label":
                return array.array("i", [sample % 2]).tobytes()
            return array.array("f", [(sample + start * 64 + i) % 7 / 7 for i in range(count * 64)])

        training = graph.Training(build, layers=1, optimizer='{"lr": 0.01}')
        training.plan(global_batch=4, seq_len=1)
        training.threads("local:0", 1)
        first, again = training.run(3, images), training.run(3, images)
        self.assertEqual(first, again)
        self.assertLess(first[-1], first[0])
        self.assertEqual(shapes[0], (16, 4))
        self.assertEqual(training.parameter("conv").shape, (4, 3, 3, 3))


    def test_every_function_of_a_net(self):
        with open(os.path.join(TOP, "runtime", "lib", "hspmd.sym"), encoding="utf-8") as file:
            names = [name.strip()[len("hspmd_net_"):] for name in file if name.startswith("hspmd_net_")]
        self.assertGreater(len(names), 50)
        net, tensor = graph.Net(None, {}, {}), graph.Tensor(None, 0)
        elsewhere = {"rank": "shape", "dim": "shape", "split": "split", "annotate": "annotate", "no_decay": "no_decay"}
        for name in names:
            where = type(tensor) if name in elsewhere else type(net)
            self.assertTrue(hasattr(where, elsewhere.get(name, name)) or hasattr(net, name), name)


class Fails(unittest.TestCase):
    def training(self, build=None):
        def usual(net):
            net.mean_loss(net.linear(net.floats("x", 2), net.parameter("w", (1, 2), deviation=1.0)), 1.0)

        training = graph.Training(build or usual, layers=1)
        training.plan(plan([{"micro_batches": 6, "stages": [{"layers": [0, 1], "devices": ["local:0"]}]}]))
        return training

    def test_words_of_hspmd(self):
        with self.assertRaisesRegex(graph.Error, r"cluster: it ends in line 1, before its JSON is complete"):
            graph.Training(print, layers=1, cluster="{")
        with self.assertRaisesRegex(graph.Error, r"cluster: line 1, column 2: "):
            graph.Training(print, layers=1, cluster="{1}")
        with self.assertRaisesRegex(graph.Error, "optimizer.*speed"):
            graph.Training(print, layers=1, optimizer={"lr": 1, "speed": 2})
        with self.assertRaisesRegex(graph.Error, "local:7: node local has devices 0..0 only"):
            self.training().program("local:7")
        training = self.training()
        with self.assertRaisesRegex(graph.Error, "no parameter|nothing has been trained"):
            training.parameter("w")
        with self.assertRaisesRegex(graph.Error, "operator linear: .*expected 2"):
            self.training(lambda net: net.loss(net.linear(net.floats("x", 2), net.parameter("w", (1, 3))), None)).run(1, read)
        with self.assertRaisesRegex(graph.Error, "cannot be loaded.*HSPMD_LIBRARY"):
            before, library._library = library._library, None
            os.environ["HSPMD_LIBRARY"], given = "/none.so", os.environ["HSPMD_LIBRARY"]
            try:
                graph.version()
            finally:
                library._library = before
                os.environ["HSPMD_LIBRARY"] = given

    @unittest.skipUnless(BUILD == os.path.realpath(os.path.join(TOP, "build")), "built in another folder")
    def test_clone_finds_its_own_library(self):
        environment = {key: value for key, value in os.environ.items() if key != "HSPMD_LIBRARY"}
        code = "from hspmd import graph; print(graph.version())"
        environment["PYTHONPATH"] = os.path.join(TOP, "contrib", "python")
        said = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(said.strip(), str(graph.version()))

    def test_exceptions_of_the_user(self):
        def build(net):
            net.floats("x", 2)
            raise KeyError("my own")

        with self.assertRaises(graph.Error) as caught:
            self.training(build).run(1, read)
        self.assertIsInstance(caught.exception.__cause__, KeyError)
        with self.assertRaisesRegex(graph.Error, "input x, sample [0-9]+: the caller's reader failed") as caught:
            self.training().run(1, lambda name, sample, start, count: 1 / 0)
        self.assertIsInstance(caught.exception.__cause__, ZeroDivisionError)
        with self.assertRaises(graph.Error) as caught:
            self.training().run(1, lambda name, sample, start, count: [0.5] * count)
        self.assertRegex(str(caught.exception.__cause__), "input x: expected 16 elements of format 'f', got 32 bytes")
        with self.assertRaises(graph.Error) as caught:
            self.training(lambda net: net.no_such_operator(1)).run(1, read)
        self.assertIsInstance(caught.exception.__cause__, AttributeError)
        gc.collect()
        self.assertEqual(len(self.training().run(2, read)), 2)


class Reads(unittest.TestCase):
    def test_what_a_job_leaves(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "corpus.bin"), "wb") as file:
                file.write(bytes(range(256)) * 8)
            job = {"format": "hspmd-job-1", "model": os.path.join(TOP, "contrib", "examples", "gpt2-tiny.json"),
                   "data": {"train": ["corpus.bin"], "kind": "bytes"}, "seq_len": 16, "global_batch": 2, "steps": 2,
                   "optimizer": {"lr": 0.001}, "checkpoint": {"shared": os.path.join(folder, "ckpt")}}  # fmt: skip
            with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
                json.dump(job, file)
            here = {**os.environ, "HSPMD_CONTACTS": os.path.join(folder, "contacts")}
            output = os.path.join(folder, "out")
            subprocess.run([HSPMD, "run", "--job", os.path.join(folder, "job.json"), "--local", "2", "--output", output], check=True,
                           env=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
            self.assertEqual(sorted(graph.losses(output)), [0, 1])
            self.assertTrue(all(0 < loss < 10 for loss in graph.losses(output).values()))
            self.assertTrue(any("step" in line for line in graph.metrics(output)))
            subprocess.run([HSPMD, "checkpoint", "export", job["checkpoint"]["shared"], "-o", os.path.join(folder, "hf")], check=True,
                           env=here, stdout=subprocess.DEVNULL)  # fmt: skip
            with open(os.path.join(folder, "hf", "model.safetensors"), "rb") as file:
                exported = file.read()
            self.compare(job["checkpoint"]["shared"], exported)
        with self.assertRaisesRegex(graph.Error, "there is no checkpoint"):
            graph.Checkpoint("/nowhere")

    def compare(self, folder, exported):
        (size,) = struct.unpack("<Q", exported[:8])
        tensors = json.loads(exported[8 : 8 + size])
        with graph.Checkpoint(folder) as checkpoint:
            self.assertEqual(checkpoint.step, 2)
            name = next(name for name in checkpoint.shapes if name.endswith("wte.weight"))
            there = next(t for n, t in tensors.items() if n.endswith("wte.weight"))
            self.assertEqual(list(checkpoint.shapes[name]), there["shape"])
            first, end = there["data_offsets"]
            self.assertEqual(checkpoint[name].tobytes(), exported[8 + size + first : 8 + size + end])
            with self.assertRaises(KeyError):
                checkpoint["none"]
        with self.assertRaisesRegex(graph.Error, "closed"):
            checkpoint[name]


if __name__ == "__main__":
    unittest.main()
