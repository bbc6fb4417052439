#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of contrib/python/hspmd that need no PyTorch: how orders are taken, which rank takes which samples, and how ranks vote."""
import contextlib
import json
import os
import random
import socket
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "contrib", "python"))

from hspmd import control, data, layout, votes  # noqa: E402

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

    def test_ping_is_answered_while_nobody_waits_for_orders(self):
        self.order(type="ping")
        self.assertEqual(json.loads(self.lines.readline()), {"type": "pong"})
        self.order(type="start")
        self.assertEqual(self.control.next(PATIENCE_S)["type"], "start")

    def test_abort_severs_and_forgets_the_stop(self):
        self.order(type="stop", generation=1)
        self.order(type="abort", generation=1)
        self.assertTrue(self.severed.wait(PATIENCE_S))
        with self.assertRaises(control.Interrupted):
            self.control.check()
        self.assertEqual(self.control.next(PATIENCE_S)["type"], "abort")
        self.control.check()
        self.assertIsNone(self.control.stop)

    def test_wait_for_abort(self):
        self.assertFalse(self.control.wait_for_abort(0))
        self.order(type="abort", generation=1)
        self.assertTrue(self.control.wait_for_abort(PATIENCE_S))

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


def rows(low, high, width=3):
    return (low, 0), (high - low, width)


class Layout(unittest.TestCase):
    def grid(self, draw, shape):
        """A tensor of this shape, cut along each dimension at random; every box has one to three holders."""
        boxes = [((), ())]
        for n in shape:
            cuts = [0, *sorted(draw.sample(range(1, n), draw.randint(0, n - 1))), n]
            boxes = [((*o, a), (*ns, b - a)) for o, ns in boxes for a, b in zip(cuts, cuts[1:])]
        return boxes

    def test_moves_fill_all_and_send_least(self):
        draw = random.Random(2)
        for _ in range(200):
            shape = [draw.randint(1, 6) for _ in range(draw.randint(0, 3))]
            old, new = self.grid(draw, shape), self.grid(draw, shape)
            sources = [(draw.randrange(4), {"t": box}) for box in old for _ in range(draw.randint(1, 3))]
            targets = {i: {"t": box} for i, box in enumerate(new)}
            moves = layout.plan(sources, targets)
            for to, wanted in targets.items():
                covered = []
                for of, _, _, part in (m for m in moves if m[1] == to):
                    self.assertEqual(layout.intersect(part, sources[of][1]["t"]), part)
                    self.assertTrue(all(layout.intersect(part, other) is None for other in covered))
                    covered.append(part)
                    local = [s for s in sources if s[0] == to and s[1] == sources[of][1]]
                    self.assertTrue(not local or sources[of][0] == to, "sent, although it was there")
                self.assertEqual(sum(map(layout.volume, covered)), layout.volume(wanted["t"]))

    def test_senders_take_turns(self):
        sources = [(0, {"t": rows(0, 2), "u": rows(0, 2)}), (1, {"t": rows(0, 2), "u": rows(0, 2)})]
        self.assertEqual({sources[m[0]][0] for m in layout.plan(sources, {5: {"t": rows(0, 2), "u": rows(0, 2)}})}, {0, 1})

    def test_the_latest_step_of_which_nothing_is_missing(self):
        shapes = {"t": (4, 3)}
        offers = [
            (0, (1, 5), shapes, {"t": rows(0, 2)}), (1, (1, 5), shapes, {"t": rows(2, 4)}),  # copies
            (0, (1, 6), shapes, {"t": rows(0, 2)}), (2, (1, 6), shapes, {"t": rows(0, 2)}),  # the other half is lost
        ]  # fmt: skip
        self.assertEqual(layout.choose(offers), [0, 1])
        self.assertEqual(layout.choose([*offers, (2, (1, 6), shapes, {"t": rows(2, 4)})]), [2, 3, 4])
        self.assertEqual(layout.choose(offers[2:]), [])
        self.assertEqual(layout.choose([]), [])


class Store:
    """As that of torch.distributed."""

    def __init__(self):
        self.changed, self.values = threading.Condition(), {}

    def set(self, key, value):
        with self.changed:
            self.values[key] = value if isinstance(value, bytes) else value.encode()
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, PATIENCE_S):
                raise RuntimeError(f"nobody has set {key}")
            return self.values[key]


class Votes(unittest.TestCase):
    def ranks(self, size, act, disturb=lambda store: None):
        """What act(rank, votes) returns on each rank; an exception counts as such."""
        store, results = Store(), [None] * size

        def run(rank):
            try:
                own = votes.Votes(store, "127.0.0.1", "127.0.0.1" if rank else None, rank, size, PATIENCE_S, PATIENCE_S)
                with contextlib.closing(own):
                    results[rank] = act(rank, own)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for one in threads:
            one.start()
        disturb(store)
        for one in threads:
            one.join(PATIENCE_S)
        return results

    def test_sums_are_the_same_on_all_ranks(self):
        for size in (1, 2, 3, 9, 10, 30):
            of_ranks = [[random.Random(rank).uniform(-1, 1), float(rank), 1.0] for rank in range(size)]
            results = self.ranks(size, lambda rank, own: [own.total(of_ranks[rank]) for _ in range(3)])
            self.assertEqual(results, [results[0]] * size)
            for sums in results[0]:
                self.assertEqual(sums[1:], [size * (size - 1) / 2, size])
                self.assertAlmostEqual(sums[0], sum(numbers[0] for numbers in of_ranks), 12)

    def test_a_rank_that_is_gone_ends_the_votes_of_all(self):
        results = self.ranks(12, lambda rank, own: own.total([1.0]) if rank != 10 else None)
        self.assertIsNone(results[10])
        self.assertTrue(all(isinstance(r, OSError) for rank, r in enumerate(results) if rank != 10), results)

    def test_strangers_do_not_vote(self):
        strangers_gone, parent_of = threading.Event(), votes.parent_of

        def disturb(store):
            port = int(store.get("rank0").split()[0])
            for said in (b"", b"x" * 64, bytes(16) + (1).to_bytes(8, "big"), store.get("token") + (7).to_bytes(8, "big")):
                with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as stranger:
                    stranger.sendall(said)
            strangers_gone.set()

        def after_strangers(rank):
            self.assertTrue(strangers_gone.wait(PATIENCE_S))
            return parent_of(rank)

        self.addCleanup(setattr, votes, "parent_of", parent_of)
        votes.parent_of = after_strangers
        self.assertEqual(self.ranks(2, lambda rank, own: own.total([1.0, rank]), disturb), [[2.0, 1.0]] * 2)


if __name__ == "__main__":
    unittest.main()
