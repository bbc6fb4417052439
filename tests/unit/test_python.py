#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of contrib/python/hspmd that need no PyTorch: how orders are taken, and which rank takes which samples."""
import json
import os
import random
import socket
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "contrib", "python"))

from hspmd import control, data  # noqa: E402

PATIENCE_S = 60


class Orders(unittest.TestCase):
    def setUp(self):
        ours, self.theirs = socket.socketpair()
        self.severed = threading.Event()
        self.control = control.Control(ours, self.severed.set)
        self.lines = self.theirs.makefile("r")
        self.theirs.settimeout(PATIENCE_S)

    def tearDown(self):
        self.lines.close()
        self.theirs.close()

    def order(self, **order):
        self.theirs.sendall(json.dumps(order).encode() + b"\n")

    def test_answers(self):
        self.control.say(type="elastic")
        self.assertEqual(json.loads(self.lines.readline()), {"type": "elastic"})

    def test_abort_severs_and_forgets_the_stop(self):
        self.order(type="stop", generation=1)
        self.order(type="abort", generation=1)
        self.assertTrue(self.severed.wait(PATIENCE_S))
        with self.assertRaises(control.Interrupted):
            self.control.check()
        self.assertEqual(self.control.next(PATIENCE_S)["type"], "abort")
        self.control.check()
        self.assertIsNone(self.control.stop)

    def test_agreed_stop_that_comes_later(self):
        got = []
        waits = threading.Thread(target=lambda: got.append(self.control.wait_for_stop()))
        waits.start()
        self.order(type="stop", generation=1)
        waits.join(PATIENCE_S)
        self.assertEqual(got, [{"type": "stop", "generation": 1}])
        self.order(type="abort", generation=1)  # instead of a stop
        self.assertIsNone(self.control.wait_for_stop())

    def test_last_stop_ends_a_wait(self):
        self.order(type="stop", end=True)
        self.assertTrue(self.control.next(PATIENCE_S)["end"])

    def test_gone(self):
        self.theirs.shutdown(socket.SHUT_RDWR)
        with self.assertRaises(control.Gone):
            self.control.next(PATIENCE_S)
        self.assertTrue(self.severed.wait(PATIENCE_S))

    def test_connect_takes_ranks_away(self):
        ours, theirs = socket.socketpair()
        e = {"HSPMD_FD": str(ours.detach()), "HSPMD_GENERATION": "1", "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "HOME": "/"}
        connection = control.connect(e)
        self.assertEqual(e, {"HSPMD_GENERATION": "1", "HOME": "/"})
        self.assertEqual(control.local_rank(), 1)
        connection.close(), theirs.close()
        self.assertIsNone(control.connect({"RANK": "3"}))


class Data(unittest.TestCase):
    def test_shares(self):
        draw = random.Random(1)
        for _ in range(300):
            ranks = draw.randint(1, 5)
            count = draw.randint(ranks, 24)
            seconds = [draw.uniform(0.1, 1.0) for _ in range(ranks)]
            now = data.even_shares(count, ranks)
            self.assertEqual(sum(now), count)
            got = data.shares(count, seconds, now)
            self.assertEqual(sum(got), count)
            self.assertTrue(min(got) >= 1)
            # No better division exists: with one micro-batch less on the last rank, some other would be at least as late.
            best = data.shares(count, seconds, [count] + [0] * (ranks - 1)) if ranks > 1 else got
            latest = data.finish(seconds, best)
            for rank in range(ranks):
                if best[rank] > 1 and best[rank] * seconds[rank] == latest:
                    others = [(best[r] + 1) * seconds[r] for r in range(ranks) if r != rank]
                    self.assertTrue(not others or min(others) >= latest * 0.95 - 1e-12)
            self.assertTrue(data.finish(seconds, got) <= data.finish(seconds, now))
        self.assertEqual(data.shares(12, [1.0, 0.0], [6, 6]), [6, 6])
        self.assertEqual(data.shares(12, [1.0, 2.0], [6, 6]), [8, 4])
        self.assertEqual(data.shares(2, [1.0, 2.0, 3.0], [1, 1, 0]), [1, 1, 0])

    def test_each_sample_once_an_epoch(self):
        def permutation(size, seed):
            order = list(range(size))
            random.Random(seed).shuffle(order)
            return order

        order = data.Order(10, 7, permutation)
        first, second = [order.sample(i) for i in range(10)], [order.sample(i) for i in range(10, 20)]
        self.assertEqual(sorted(first), list(range(10)))
        self.assertEqual(sorted(second), list(range(10)))
        self.assertNotEqual(first, second)
        self.assertEqual(order.sample(3), first[3])
        self.assertEqual([data.Order(4, 0, None).sample(i) for i in range(6)], [0, 1, 2, 3, 0, 1])

    def test_seeds_differ(self):
        seeds = {data.mix(a, b, c) for a in range(4) for b in range(20) for c in range(20)}
        self.assertEqual(len(seeds), 1600)
        self.assertTrue(all(0 <= s < 1 << 63 for s in seeds))


if __name__ == "__main__":
    unittest.main()
