# SPDX-License-Identifier: Apache-2.0
"""Elastic: the loop of one process, run by as many ranks as there are at the moment."""
import functools
import os
import random
import sys
import time

import torch

from hspmd import control, data, state
from hspmd.control import Control, Gone, Interrupted, local_rank
from hspmd.group import BUCKET_BYTES, Group

ORDER_S = 15  # for an order of the stand-in after a peer has gone; then it is told of a fault
RECENT = 2  # losses that are repeated, so that no line of metrics is missing
EXIT_MORE = 85

_connection = control.connect()


def connected():
    """True: hspmd has started this process."""
    return _connection is not None


def device():
    """Where the model belongs: this rank's GPU, or the processor."""
    return torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def _collate(samples):
    return torch.utils.data.default_collate(samples)


def _permutation(size, seed):
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


def _to(value, where):
    if isinstance(value, torch.Tensor):
        return value.to(where, non_blocking=True)
    if isinstance(value, dict):
        return {k: _to(v, where) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_to(v, where) for v in value)
    return value


def _count(value):
    """Samples of a micro-batch."""
    while isinstance(value, (dict, list, tuple)):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value)


class Elastic:
    """model, optimizer: of this process; after the first step of batches() all ranks have equal ones.
    batch: samples of a step; micro: of a micro-batch, which is what a rank computes at a time. micro divides batch.
    scheduler: stepped here, once per step. extra: { name: object with state_dict and load_state_dict }, kept with the state.
    clip: largest norm of the gradients. seed: of the samples' order, and of random numbers, which are drawn anew in each micro-batch.
    folder: of checkpoints (default: $HSPMD_CHECKPOINT; none without either), written every save_s seconds, and at the end.

    step: number of the next step; loss, grad_norm (before it was clipped; None: it is not): of the last one; rank, size, shares (micro-batches of each rank), generation."""

    def __init__(self, model, optimizer, *, batch, micro, scheduler=None, extra=None, clip=None, seed=0, folder=None, save_s=600.0):
        if batch % micro:
            raise ValueError(f"hspmd: batch {batch} is no multiple of micro {micro}")
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.batch, self.micro, self.clip, self.seed = batch, micro, clip, seed
        self.step, self.loss, self.grad_norm, self.generation = 0, None, None, 0
        self.rank, self.size, self.shares = 0, 1, [batch // micro]
        self.device = next(model.parameters()).device
        others = dict(extra or {})
        if scheduler is not None:
            others["scheduler"] = scheduler
        self._state = state.State(model, optimizer, others, self.device)
        self._checkpoints = state.Checkpoints(folder or os.environ.get("HSPMD_CHECKPOINT"))
        self._save_s, self._saved_at, self._saved_step = save_s, time.monotonic(), -1
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._real_step, self._real_zero = optimizer.step, optimizer.zero_grad
        optimizer.step = functools.wraps(self._real_step)(lambda *a, **k: self._optimizer_step(*a, **k))
        optimizer.zero_grad = self._optimizer_zero
        self._group = self._previous_group = None
        self._holds = 0  # generation of whose state this process has a whole copy
        self._begun = self._in_step = self._last = self._reduced = False
        self._interrupted = None  # why the step under way is given up
        self._ready = self._applied = self._sums = None
        self._losses = []
        self._seconds, self._busy_since, self._busy = [0.0], 0.0, 0.0
        self._weight = self._loss_sum = 0.0
        global _connection
        self._control = Control(_connection, self._sever) if _connection else None
        _connection = None
        if self._control:
            self._control.say(type="elastic")

    # ---- the loop

    def batches(self, dataset, *, epochs=1, steps=None, shuffle=True, collate=_collate):
        """Yields this rank's micro-batches, step by step, until `steps` are done, or `epochs` of the dataset. After each, call backward() and
        optimizer.step(). A step that was given up begins again."""
        self.samples_from(dataset, shuffle=shuffle, collate=collate)
        total = steps if steps is not None else epochs * len(dataset) // self.batch
        self.begin()
        while self.step < total:
            self._begin_step()
            numbers = self._numbers_of_rank()
            for number in numbers:
                self._last = number == numbers[-1]
                samples = self.samples(number)
                self._in_micro = True
                yield _to(samples, self.device)
                if self._in_micro:
                    raise RuntimeError("hspmd: backward() was not called for a micro-batch")
                if self._interrupted:
                    break
            if not numbers and not self._interrupted:
                self._reduce()
                self._commit()
            elif self._in_step and not self._interrupted:
                raise RuntimeError("hspmd: optimizer.step() was not called after the last micro-batch of a step")
            if self._interrupted or self._stopping:
                self._change()
            self._save_now_and_then(total)
        self.finish()

    def samples_from(self, dataset, *, shuffle=True, collate=_collate):
        """Names the data of samples()."""
        self._data = dataset, data.Order(len(dataset), self.seed, _permutation if shuffle else None), collate

    def samples(self, number):
        """Micro-batch `number` of the step. Random numbers begin anew with it."""
        dataset, order, collate = self._data
        start = self.step * self.batch + number * self.micro
        self._seed_all(number)
        samples = collate([dataset[order.sample(p)] for p in range(start, start + self.micro)])
        self._busy_since = time.monotonic()
        return samples

    def make_step(self, micro_batch, total):
        """For a loop that is not that of batches(), which calls begin() first and finish() last: makes a step, of `total`. Calls
        micro_batch(number) for each micro-batch of this rank: it takes samples(number), adds to the gradients those of the sum of the losses of n
        things, and returns (that sum, n). If the step is given up, all begins again, maybe with other micro-batches. Returns when all is
        committed."""
        wanted = self.step + 1
        while self.step < wanted:
            self._begin_step()
            for number in self._numbers_of_rank():
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

    def _count(self, loss, n):
        self._weight += n
        self._loss_sum += loss
        self._busy += time.monotonic() - self._busy_since

    def backward(self, loss, n=None):
        """Adds the gradients of this micro-batch, whose loss is a mean over n things (default: its samples; for texts of unequal lengths: its
        tokens), so that each thing of a step weighs the same. After the last micro-batch the sum of all ranks is there."""
        self._in_micro = False
        n = self.micro if n is None else n
        if self._interrupted:
            return
        (loss * n).backward()
        self._count(float(loss.detach()) * float(n), float(n))
        if self._last:
            self._reduce()

    def _seed_all(self, number):
        seed = data.mix(self.seed, self.step, number)
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)

    def _begin_step(self):
        self._in_step, self._reduced, self._last = True, False, False
        self._stopping = False
        self._weight = self._loss_sum = self._busy = 0.0
        self.grad_norm = None
        self._real_zero(set_to_none=True)

    # ---- sums

    def _give_up(self, error):
        self._interrupted = error

    def _reduce(self):
        """Gradients of the step: the sum over all ranks, by the number of things."""
        try:
            self._sum_gradients()
        except Interrupted as error:
            self._give_up(error)

    def _sum_gradients(self):
        params = self._parameters
        counts = torch.tensor([self._weight] + [float(p.grad is not None) for p in params], dtype=torch.float64)
        if self._group and self.size > 1:
            counts = counts.to(self._group.device)
            self._group.sum(counts)
        counts = counts.tolist()
        if not counts[0]:
            raise RuntimeError("hspmd: a step that counts nothing")
        bucket, size = [], 0
        for p, used in zip(params, counts[1:]):
            if not used:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if bucket and (size + p.grad.numel() * p.grad.element_size() > BUCKET_BYTES or p.grad.dtype != bucket[0].dtype):
                self._sum_bucket(bucket, counts[0])
                bucket, size = [], 0
            bucket.append(p.grad)
            size += p.grad.numel() * p.grad.element_size()
        if bucket:
            self._sum_bucket(bucket, counts[0])
        if self.clip is not None:
            self.grad_norm = torch.nn.utils.clip_grad_norm_([p for p in params if p.grad is not None], self.clip)
        self._reduced = True

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

    def _commit(self):
        self._ready = self.step
        try:
            votes = self._vote()
        except Interrupted as error:
            self._give_up(error)
            return
        self._apply(votes)

    def _vote(self):
        """All ranks have their gradients, or none goes on. Returns the sums: ranks that were told to stop, losses, things, and the seconds of a
        micro-batch of each rank."""
        if self._control:
            self._control.check()
        votes = torch.zeros(3 + self.size, dtype=torch.float64)
        stop = self._control is not None and self._control.stop is not None
        mine = self.shares[self.rank]
        votes[0], votes[1], votes[2] = float(stop), self._loss_sum, self._weight
        votes[3 + self.rank] = self._busy / mine if mine else 0.0
        if self._group and self.size > 1:
            votes = votes.to(self._group.device)
            self._group.sum(votes)
        return votes.tolist()

    def _apply(self, votes):
        self._real_step()
        if self.scheduler is not None:
            self.scheduler.step()
        self._applied, self._sums, self._ready = self.step, votes, None
        self.loss = votes[1] / votes[2]
        self._losses = [*self._losses, [self.step, self.loss]][-RECENT:]
        if self._control and self.rank == 0:
            self._tell(step=self.step, loss=self.loss, tokens=int(votes[2]))
        self.step += 1
        self._in_step, self._stopping = False, votes[0] > 0
        self._share(votes[3:])

    def _share(self, seconds):
        if len(seconds) != self.size:
            return
        if len(self._seconds) != self.size:
            self._seconds = seconds
        self._seconds = [0.7 * a + 0.3 * b if a and b else a or b for a, b in zip(self._seconds, seconds)]
        self.shares = data.shares(self.batch // self.micro, self._seconds, self.shares)

    # ---- changes

    def _tell(self, **message):
        try:
            self._control.say(**message)
        except Gone:
            os._exit(1)

    def _sever(self):
        for group in (self._group, self._previous_group):
            if group:
                group.sever()

    def begin(self):
        """The first generation of this process: it has the state afterwards."""
        if self._begun:
            return
        self._begun = True
        self._stopping = False
        if self._control:
            self._change()
        else:
            self._resume_alone()

    def _resume_alone(self):
        newest = self._checkpoints.newest() if self._checkpoints.folder else -1
        if newest >= 0:
            self._take(self._checkpoints.load(self._state, newest))

    def _take(self, numbers):
        self.step, self._losses, self.loss = numbers["step"], numbers["losses"], numbers["loss"]
        self._saved_step = self.step

    def _numbers(self):
        return {"step": self.step, "losses": self._losses, "loss": self.loss}

    def _change(self):
        """From the end of a generation to the next: answers orders until this rank trains in a new one."""
        why = self._interrupted
        if self._stopping and not why:
            self._stopped(self._next(self._control.wait_for_stop))
        until = time.monotonic() + ORDER_S if why else None
        while True:
            order = self._next(lambda limit=until: self._control.next(limit and max(0.0, limit - time.monotonic())))
            until = None
            if order is None:
                self._tell(type="fault", text=str(why)[:300])
            elif order["type"] == "stop":
                self._stopped(order)
            elif order["type"] == "abort":
                self._sever()
                self._tell(type="aborted", step=self.step, holds=self._holds or None, ready=self._ready, applied=self._applied,
                           sums=self._sums or [], losses=self._losses)  # fmt: skip
            elif order["type"] == "settle":
                self._settle(order)
            elif order["type"] == "start":
                try:
                    if self._start(order):
                        return
                except Interrupted as error:
                    why, until = error, time.monotonic() + ORDER_S

    def _next(self, wait):
        try:
            return wait()
        except Gone:
            os._exit(1)

    def _stopped(self, order):
        self._stopping = False
        if order is None:
            return
        if order.get("end"):
            if self.rank == 0 and self._checkpoints.folder:
                self._save()
                self._checkpoints.wait()
            sys.stdout.flush()
            raise SystemExit(EXIT_MORE)
        self._tell(type="stopped", step=self.step, losses=self._losses)

    def _settle(self, order):
        if order.get("apply") is not None and order["apply"] == self._ready:
            self._apply(order["sums"])
        self._ready, self._stopping = None, False
        self._tell(type="settled", step=self.step, losses=self._losses)

    def _start(self, order):
        """Returns true if this rank trains in the new generation."""
        began = time.monotonic()
        self._control.check()
        self._control.stop = None
        self._previous_group, self._group = self._group, Group(self.device, self._control.check)
        group, me = self._group, order["member"]
        group.open(order["host"], order["port"], order["rank"] == 0)
        newest = self._checkpoints.newest() if self._checkpoints.folder else -1
        group.publish(f"has/{me}", f"{self._holds and self.step + 1} {newest + 1}")
        has = [tuple(map(int, group.read(f"has/{i}").split())) for i in range(order["members"])]
        connected, moved = self._fill(group, order, has)
        self._interrupted = self._ready = None
        self._in_step = False
        if order["rank"] < 0:
            self._tell(type="started", step=self.step, bytes=_no_bytes(), seconds={"connect": 0, "move": 0})
            return False
        self.rank, self.size, self.generation = order["rank"], order["world"], order["generation"]
        self._holds, self._applied, self._sums = self.generation, None, None
        self._previous_group = None
        self.shares = data.even_shares(self.batch // self.micro, self.size)
        self._seconds = [0.0] * self.size
        self._tell(type="started", step=self.step, bytes=_no_bytes() | {"peers": moved},
                   seconds={"connect": connected - began, "move": time.monotonic() - connected})  # fmt: skip
        return True

    def _fill(self, group, order, has):
        """Connects the ranks, and gives the state to those that have none. has: (step + 1 of the state held, step + 1 of the newest checkpoint) of
        each member, 0: none. Returns (when they were connected, bytes received)."""
        world, members, rank, me = order["world"], order["members"], order["rank"], order["member"]
        last = max(h for h, _ in has)
        holders = [i for i, (h, _) in enumerate(has) if h == last] if last else []
        if not last:
            saved = max(c for _, c in has[:world])
            holders = [i for i, (_, c) in enumerate(has[:world]) if c == saved] if saved else [0]
            if saved and me in holders:
                self._take(self._checkpoints.load(self._state, saved - 1))
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
            text, tensors = self._state.describe(self._numbers())
            if me == holders[0]:
                group.publish("state", text)
        else:
            self._holds = 0
            numbers, tensors = self._state.adopt(group.read("state"))
            self._take(numbers)
        return state.move(group, tensors, holders, joiners)

    # ---- checkpoints, end

    def _save(self):
        if self._saved_step != self.step:
            self._checkpoints.save(self.step, *self._state.describe(self._numbers()))
        self._saved_step, self._saved_at = self.step, time.monotonic()

    def _save_now_and_then(self, total):
        if not self._checkpoints.folder or self.rank or self._in_step:
            return
        if self.step >= total or (time.monotonic() - self._saved_at >= self._save_s and not self._checkpoints.busy()):
            self._save()

    def finish(self):
        """After the last step."""
        if self.rank == 0 and self._checkpoints.folder:
            self._save()
        self._checkpoints.wait()
        if self._checkpoints.failure:
            print(f"hspmd: the last checkpoint was not written: {self._checkpoints.failure}", file=sys.stderr)
        if self._group and self.size > 1:
            try:  # nobody closes its end while another still reads the last vote
                self._group.sum(torch.zeros(1, device=self._group.device))
            except Interrupted:
                pass


def _no_bytes():
    return {"local": 0, "peers": 0, "disk": 0, "shared": 0}
