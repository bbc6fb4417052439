# SPDX-License-Identifier: Apache-2.0
"""Elastic: the loop of one process, run by as many ranks as there are at the moment."""
import functools
import os
import time

import torch

from hspmd import checkpoints, data, state
from hspmd.control import Interrupted, local_rank
from hspmd.group import BUCKET_BYTES
from hspmd.member import Member, default_collate, to_device


ALONE_BYTES = 1 << 20  # a gradient of so many is summed up where it is, not copied to a bucket and back


class Elastic(Member):
    """model, optimizer: of this process; after the first step of batches() all ranks have equal ones.
    batch: samples of a step; micro: of a micro-batch, which is what a rank computes at a time. micro divides batch.
    scheduler: stepped here, once per step. extra: { name: object with state_dict and load_state_dict }, kept with the state.
    clip: largest norm of the gradients, or a function that is called when they are summed up.
    seed: of the samples' order, and of random numbers, which are drawn anew in each micro-batch.
    folder: of checkpoints, which all ranks see (default: $HSPMD_CHECKPOINT; none without either), written every save_s seconds, and at the
    end. local: a folder of each node's own, in which the node keeps such checkpoints, too, every local_s seconds, and at the end.

    step: number of the next step; loss, grad_norm (before it was clipped; None: it is not): of the last
    one; rank, size, shares (micro-batches of each rank), generation. ask_to_end: set by any rank; asked_to_end: on all ranks, whether one
    had done so when the last step was made."""

    def __init__(self, model, optimizer, *, batch, micro, scheduler=None, extra=None, clip=None, seed=0, folder=None, save_s=600.0,
                 local=None, local_s=60.0):  # fmt: skip
        if batch % micro:
            raise ValueError(f"hspmd: batch {batch} is no multiple of micro {micro}")
        self._shared = checkpoints.Checkpoints(folder or os.environ.get("HSPMD_CHECKPOINT"), save_s)
        self._local = checkpoints.Checkpoints(local, local_s)
        super().__init__(next(model.parameters()).device, self._shared, self._local)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.batch, self.micro, self.clip, self.seed = batch, micro, clip, seed
        self.shares = [batch // micro]
        others = dict(extra or {})
        if scheduler is not None:
            others["scheduler"] = scheduler
        self._state = state.State(model, optimizer, others, self.device)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._real_step, self._real_zero = optimizer.step, optimizer.zero_grad
        optimizer.step = functools.wraps(self._real_step)(lambda *a, **k: self._optimizer_step(*a, **k))
        optimizer.zero_grad = self._optimizer_zero
        self._begun = self._reduced = self.ask_to_end = self.asked_to_end = False
        self._seconds = [0.0]

    # ---- the loop

    def batches(self, dataset, *, epochs=1, steps=None, shuffle=True, collate=default_collate):
        """Yields this rank's micro-batches, step by step, until `steps` are done, or `epochs` of the dataset. After each, call backward()
        and optimizer.step(). A step that was given up begins again."""
        self.samples_from(dataset, shuffle=shuffle, collate=collate)
        total = steps if steps is not None else epochs * len(dataset) // self.batch
        self.begin()
        while self.step < total:
            self._begin_step()
            self._reduced = False
            numbers = self._numbers_of_rank()
            for number in numbers:
                if self._given_up():
                    break
                self._last = number == numbers[-1]
                samples = self.samples(number)
                self._in_micro = True
                yield to_device(samples, self.device)
                if self._in_micro:
                    raise RuntimeError("hspmd: backward() was not called for a micro-batch")
            if not numbers and not self._interrupted:
                self._reduce()
                self._commit()
            elif self._in_step and not self._interrupted:
                raise RuntimeError("hspmd: optimizer.step() was not called after the last micro-batch of a step")
            if self._interrupted or self._stopping:
                self._change()
            self._save_now_and_then(total)
        self.finish()

    def make_step(self, micro_batch, total):
        """For a loop that is not that of batches(), which calls begin() first and finish() last: makes a step, of `total`. Calls
        micro_batch(number) for each micro-batch of this rank: it takes samples(number), adds to the gradients those of the sum of the
        losses of n things, and returns (that sum, n). If the step is given up, all begins again, maybe with other micro-batches. Returns
        when all is committed."""
        wanted = self.step + 1
        while self.step < wanted:
            self._begin_step()
            self._reduced = False
            for number in self._numbers_of_rank():
                if self._given_up():
                    break
                self._count(*micro_batch(number))
            self._reduce()
            if not self._interrupted:
                self._commit()
            if self._interrupted or self._stopping:
                self._change()
        self._save_now_and_then(total)

    def _numbers_of_rank(self):
        first = sum(self.shares[: self.rank])
        return range(first, first + self.shares[self.rank])

    def backward(self, loss, n=None):
        """Adds the gradients of this micro-batch, whose loss is a mean over n things (default: its samples; for texts of unequal lengths:
        its tokens), so that each thing of a step weighs the same. After the last micro-batch the sum of all ranks is there."""
        self._in_micro = False
        n = self.micro if n is None else n
        if self._given_up():
            return
        (loss * n).backward()
        self._count(float(loss.detach()) * float(n), float(n))
        if self._last:
            self._reduce()

    # ---- sums

    def _reduce(self):
        """Gradients of the step: the sum over all ranks, by the number of things."""
        try:
            self._sum_gradients()
        except Interrupted as error:
            self._interrupted = error

    def _sum_gradients(self):
        params = self._parameters
        counts = [self._weight, *(float(p.grad is not None) for p in params)]
        if self._group:
            counts = self._group.total(*counts)
        if not counts[0]:
            raise RuntimeError("hspmd: a step that counts nothing")
        bucket, size = [], 0
        for p, used in zip(params, counts[1:]):
            if not used:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            own = p.grad.numel() * p.grad.element_size()
            if own >= ALONE_BYTES:
                self._sum_alone(p.grad, counts[0])
                continue
            if bucket and (size + own > BUCKET_BYTES or p.grad.dtype != bucket[0].dtype):
                self._sum_bucket(bucket, counts[0])
                bucket, size = [], 0
            bucket.append(p.grad)
            size += own
        if bucket:
            self._sum_bucket(bucket, counts[0])
        if callable(self.clip):
            self.clip()
        elif self.clip is not None:
            self.grad_norm = torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], self.clip)
        self._reduced = True

    def _sum_alone(self, grad, count):
        if self.size > 1:
            flat = grad.contiguous()  # it may lie otherwise on another rank
            self._group.sum(flat.view(-1))
            if flat is not grad:
                grad.copy_(flat)
        grad.div_(count)

    def _sum_bucket(self, grads, count):
        if self.size == 1:
            for g in grads:
                g.div_(count)
            return
        flat = torch.cat([g.reshape(-1) for g in grads])
        self._group.sum(flat)
        flat.div_(count)
        for g, part in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(part.view_as(g))

    # ---- commit

    def _optimizer_zero(self, *_, **__):
        """Gradients are cleared where a step begins."""

    def _optimizer_step(self, closure=None):
        if closure is not None:
            raise TypeError("hspmd: optimizer.step() with a closure")
        if not self._last or self._interrupted:
            return
        if not self._in_step or not self._reduced:
            raise RuntimeError("hspmd: optimizer.step() before backward()")
        self._commit()

    def _vote(self):
        """All ranks have their gradients, or none goes on. Returns the sums: ranks that were told to stop, losses, things, ranks
        that ask to end, and the seconds of a micro-batch of each rank."""
        seconds = [0.0] * self.size
        mine = self.shares[self.rank]
        seconds[self.rank] = self._busy / mine if mine else 0.0
        votes = self._told_to_stop(), self._loss_sum, self._weight, float(self.ask_to_end), *seconds
        return self._group.total(*votes) if self._group else list(votes)

    def _after(self, sums):
        self.asked_to_end, seconds = sums[0] > 0, sums[1:]
        if len(seconds) != self.size:
            return
        if len(self._seconds) != self.size:
            self._seconds = seconds
        self._seconds = [0.7 * a + 0.3 * b if a and b else a or b for a, b in zip(self._seconds, seconds)]
        self.shares = data.shares(self.batch // self.micro, self._seconds, self.shares)

    def begin(self):
        """The first generation of this process: it has the state afterwards."""
        if self._begun:
            return
        self._begun = True
        if self._control:
            self._change()
        else:
            self._resume_alone()

    def _resume_alone(self):
        newest, source = self._newest()
        if newest >= 0:
            self._take(source.load(self._state.adopt), source)

    def _newest(self):
        """Returns (the step of the newest checkpoint that this rank sees, or -1; where it is)."""
        steps = [one.newest() for one in self._checkpoints]
        return max(steps), self._checkpoints[steps.index(max(steps))]

    def _connect(self, group, order):
        if order["rank"] >= 0:
            group.join("train", order["rank"], order["world"])

    def _join(self, group, order):
        newest, source = self._newest()
        group.publish(f"has/{order['member']}", f"{self._holds and self.step + 1} {newest + 1}")
        has = [tuple(map(int, group.read(f"has/{i}").split())) for i in range(order["members"])]
        joined = self._fill(group, order, has, source)
        if order["rank"] >= 0:
            self.shares = data.even_shares(self.batch // self.micro, order["world"])
            self._seconds = [0.0] * order["world"]
        return joined

    def _fill(self, group, order, has, source):
        """Gives the state to ranks that have none. has: (step + 1 of the state held, step + 1 of the newest checkpoint) of each member, 0:
        none. source: where this one's newest is."""
        world, members, rank, me = order["world"], order["members"], order["rank"], order["member"]
        last = max(h for h, _ in has)
        holders = [i for i, (h, _) in enumerate(has) if h == last] if last else []
        if not last:
            saved = max(c for _, c in has[:world])
            holders = [i for i, (_, c) in enumerate(has[:world]) if c == saved] if saved else [0]
            if saved and me in holders:
                self._take(source.load(self._state.adopt), source)
        in_world = [i for i in holders if i < world]
        joiners = [i for i in range(world) if i not in holders]
        moved = 0
        if not in_world:  # all that hold the state leave
            group.join("move", me, members)
            moved = self._exchange(group, me, holders, joiners)
        if rank < 0:
            return time.monotonic(), 0
        group.join("train", rank, world)
        connected = time.monotonic()
        if in_world:
            moved = self._exchange(group, rank, in_world, joiners)
        return connected, moved

    def _exchange(self, group, me, holders, joiners):
        if not joiners or (me not in holders and me not in joiners):
            return 0
        if me in holders:
            text, pieces = self._state.describe(self._numbers())
            if me == holders[0]:
                group.publish("state", text)
        else:
            self._holds = 0
            numbers, pieces = self._state.adopt(group.read("state"))
            self._take(numbers)
        return state.move(group, pieces, holders, joiners)

    # ---- checkpoints, end

    def _own(self):
        """Where this rank saves: of each node, one rank on its disk; of all, rank 0 in the folder of all."""
        return [one for one, writes in ((self._shared, self.rank == 0), (self._local, local_rank() == 0)) if one.folder and writes]

    def _save(self, places):
        for one in places:
            if not one.has(self.step):
                one.save(self.step, self.generation, *self._state.describe(self._numbers()))

    def _save_now_and_then(self, total):
        if not self._in_step:
            self._save([one for one in self._own() if self.step >= total or one.due()])

    def _save_and_wait(self):
        self._save(self._own())
        self._wait_written()

    def finish(self):
        """After the last step."""
        self._save_and_wait()
        if self._group:
            try:  # nobody closes its end while another still reads the last vote
                self._group.total(0.0)
            except Interrupted:
                pass
