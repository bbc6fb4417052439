# SPDX-License-Identifier: Apache-2.0
"""A process of the training: what it is asked by the stand-in, and what its steps are made of. Elastic and Run say which state it has."""
import atexit
import gc
import os
import random
import sys
import threading
import time

import torch

from hspmd import control, data
from hspmd.control import Control, Gone, Interrupted, local_rank
from hspmd.group import Group

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


def default_collate(samples):
    return torch.utils.data.default_collate(samples)


def permutation(size, seed):
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


def leave_objects_alone():
    """Python looks through all objects now and then, for garbage; with those of PyTorch's modules this takes so long that all ranks wait.
    The present ones are exempted."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def to_device(value, where):
    if isinstance(value, torch.Tensor):
        return value.to(where, non_blocking=True)
    if isinstance(value, dict):
        return {k: to_device(v, where) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_device(v, where) for v in value)
    return value


class _Ahead:
    """Connects for the generation of this order beside training, and then says so."""

    def __init__(self, order, group, connect, say):
        self.generation, self.group = order["generation"], group
        self._arguments, self._error = (order, connect, say), None
        self._thread = threading.Thread(target=self._run, name="hspmd-ahead", daemon=True)
        self._thread.start()

    def _run(self):
        order, connect, say = self._arguments
        try:
            connect(self.group, order)
            say(type="connected", generation=self.generation)
        except Exception as error:
            self._error = error

    def take(self):
        """The group, once it is connected. Raises what has stopped it."""
        self._thread.join()
        if self._error:
            raise self._error
        return self.group


class Member:
    """batch, micro, seed, scheduler: see Elastic. Those who inherit have
    _vote(): the sums over all ranks of the ranks that were told to stop, losses, things, and more; raises Interrupted;
    _real_step(): of the optimizer; _before_step(more), _after(more): what else follows from a vote's sums;
    _connect(group, order): connects the ranks as far as that needs no state; maybe in another thread, while this one trains;
    _join(group, order): brings the state. Returns (when all was connected, bytes received); None: `started` is told later;
    _save_and_wait(): before the end."""

    def __init__(self, device, *checkpoints):
        self.device = device
        self.batch = self.micro = 1
        self.seed, self.scheduler = 0, None
        self.step, self.loss, self.grad_norm, self.generation = 0, None, None, 0
        self.rank, self.size = 0, 1
        self._checkpoints = checkpoints
        self._group = self._previous_group = None
        self._ahead = None  # what connects for the generation that is to follow
        self._holds = 0  # generation of whose state this process has a whole copy
        self._in_step = self._last = self._stopping = False
        self._interrupted = None  # why the step under way is given up
        self._ready = self._applied = self._sums = None
        self._losses = []
        self._busy_since = self._busy = 0.0
        self._weight = self._loss_sum = 0.0
        global _connection
        self._control = Control(_connection, self._sever, self._connect_ahead) if _connection else None
        _connection = None
        if self._control:
            leave_objects_alone()  # before others wait for this rank
            self._control.say(type="elastic")

    # ---- a step

    def samples_from(self, dataset, *, shuffle=True, collate=default_collate):
        """Names the data of samples()."""
        self._data = dataset, data.Order(len(dataset), self.seed, permutation if shuffle else None), collate

    def samples(self, number):
        """Micro-batch `number` of the step. Random numbers begin anew with it."""
        dataset, order, collate = self._data
        start = self.step * self.batch + number * self.micro
        self._seed_all(number)
        samples = collate([dataset[order.sample(p)] for p in range(start, start + self.micro)])
        self._busy_since = time.monotonic()
        return samples

    def _seed_all(self, number):
        seed = data.mix(self.seed, self.step, number)
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)

    def _count(self, loss, n):
        self._weight += n
        self._loss_sum += loss
        self._busy += time.monotonic() - self._busy_since

    def _begin_step(self):
        self._in_step, self._last, self._stopping = True, False, False
        self._weight = self._loss_sum = self._busy = 0.0
        self.grad_norm = None
        self._real_zero(set_to_none=True)

    def _wait_copied(self):
        """Before the state changes."""
        for one in self._checkpoints:
            one.copied()

    def _told_to_stop(self):
        """1.0, or 0.0. Raises Interrupted if the step is to be given up."""
        if self._control is None:
            return 0.0
        self._control.check()
        return float(self._control.stop is not None)

    def _given_up(self):
        """Whether the rest of the step is in vain."""
        if self._control and self._control.aborted and not self._interrupted:
            self._interrupted = Interrupted("told to give up")
        return self._interrupted is not None

    def _commit(self):
        """All ranks make the step, or none does."""
        self._ready = self.step
        try:
            votes = self._vote()
        except Interrupted as error:
            self._interrupted = error
            return
        self._apply(votes)

    def _apply(self, votes):
        self._wait_copied()
        self._before_step(votes[3:])
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
        self._after(votes[3:])

    def _before_step(self, more):
        pass

    # ---- changes

    def _tell(self, **message):
        try:
            self._control.say(**message)
        except Gone:
            os._exit(1)

    def _sever(self):
        for group in (self._group, self._previous_group, self._ahead and self._ahead.group):
            if group:
                group.sever()

    def _connect_ahead(self, order):
        if self._ahead:
            self._ahead.group.sever()
        self._ahead = _Ahead(order, Group(self.device, self._control.check), self._open, self._control.say)

    def _open(self, group, order):
        group.open(order["host"], order["port"], order["rank"] == 0)
        self._connect(group, order)
        if order["rank"] >= 0:
            group.join_votes(order["rank"], order["world"])

    def _opened(self, order):
        """The group of the generation that starts now. Raises Interrupted."""
        ahead = self._ahead
        if ahead and ahead.generation == order["generation"]:
            self._group, self._ahead = ahead.group, None  # in this order: what is severed meanwhile has it
            return ahead.take()
        if ahead:
            ahead.group.sever()
        self._group, self._ahead = Group(self.device, self._control.check), None
        self._open(self._group, order)
        return self._group

    def _numbers(self):
        return {"step": self.step, "losses": self._losses, "loss": self.loss}

    def _take(self, numbers, of=None):
        """Of a state that this rank has got. of: the checkpoints that it is from; None: from other ranks."""
        self.step, self._losses, self.loss = numbers["step"], numbers["losses"], numbers["loss"]
        for one in self._checkpoints:
            if one is not of:
                one.kept_step = -1

    def _wait_written(self):
        for one in self._checkpoints:
            one.wait()
            if one.failure:
                print(f"hspmd: the last checkpoint was not written: {one.failure}", file=sys.stderr)

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
            self._save_and_wait()
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
        self._began = time.monotonic()
        self._control.check()
        self._control.stop = None
        self._wait_copied()
        self._previous_group = self._group
        joined = self._join(self._opened(order), order)
        self._interrupted = self._ready = None
        self._in_step = False
        if order["rank"] < 0:
            self._tell(type="started", step=self.step, bytes=no_bytes(), seconds={"connect": 0, "move": 0})
            return False
        self.rank, self.size, self.generation = order["rank"], order["world"], order["generation"]
        self._previous_group = None
        if joined:
            self._started(*joined)
        return True

    def _started(self, connected, moved):
        self._holds, self._applied, self._sums = self.generation, None, None
        self._tell(type="started", step=self.step, bytes=no_bytes() | {"peers": moved},
                   seconds={"connect": connected - self._began, "move": time.monotonic() - connected})  # fmt: skip


def no_bytes():
    return {"local": 0, "peers": 0, "disk": 0, "shared": 0}
