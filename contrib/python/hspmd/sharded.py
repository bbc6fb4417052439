# SPDX-License-Identifier: Apache-2.0
"""elastic: main(run) is called again for each generation, in the same process. Models may be divided among the ranks (FSDP2, or any
DTensor), and main may use torch.distributed."""
import contextlib
import functools
import os
import sys
import time

import torch
import torch._dynamo  # noqa: F401 -- an optimizer or FSDP would import these, for seconds in which all others wait for this rank
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401
import torch.overrides
from torch.distributed.device_mesh import init_device_mesh

from hspmd import checkpoints, disk, layout, shards
from hspmd.control import Interrupted
from hspmd.local_step import local_step
from hspmd.member import ORDER_S, Member, default_collate, device, to_device

_OF_PEERS = ("gloo", "Gloo", "NCCL", "TCPStore", "Connection")


class Again(BaseException):
    """The generation is over."""


def elastic(main=None, **options):
    """A decorator: main(run, ...) is called for each generation (run: Run). Options: those of Run."""
    if main is None:
        return lambda main: elastic(main, **options)

    @functools.wraps(main)
    def call(*args, **kwargs):
        return Run(**options).call(main, args, kwargs)

    return call


def ddp(model, **options):
    """DistributedDataParallel of this generation. Its parameters are equal already: hold() has seen to it, or does."""
    ids = [torch.cuda.current_device()] if next(model.parameters()).is_cuda else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, init_sync=False, **options)


class NoFirstValues(torch.overrides.TorchFunctionMode):
    """Meanwhile nothing is drawn for parameters: they stay as they are."""

    _DRAWS = {getattr(torch.Tensor, name + "_") for name in ("uniform", "normal", "log_normal", "exponential", "cauchy", "geometric",
              "random", "bernoulli")}  # fmt: skip

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self._DRAWS or getattr(func, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.nn.Parameter):
                return tensor
        return func(*args, **kwargs)


class Run(Member):
    """replicas: copies of each rank's part in other ranks' memory, made anew every copy_steps steps, so that ranks may die. A model that is
    not divided needs none. folder, save_s: of checkpoints, as in Elastic. local, local_s: a folder of each node's own, in which its ranks
    keep their parts, and the copies that they have of others', every local_s seconds, and at the end.

    For main: mesh (all ranks, one dimension), device, rank, size, generation, step, loss, grad_norm; make(), hold(), batches(),
    backward()."""

    def __init__(self, *, replicas=1, copy_steps=1, seed=0, folder=None, save_s=600.0, local=None, local_s=60.0):
        self._shared = checkpoints.Checkpoints(folder or os.environ.get("HSPMD_CHECKPOINT"), save_s)
        self._disk = local
        self._local = checkpoints.Checkpoints(disk.folder_of_rank(local), local_s)
        super().__init__(device(), self._shared, self._local)
        self.seed, self._replicas, self._copy_steps = seed, replicas, copy_steps
        self.mesh = None
        self._held = None  # of this generation, once it is whole
        self._copies, self._fresh = [], []  # parts that were copied; those of which it is not yet known that all ranks have them
        self._copying = None  # what becomes the latter
        self._total = 0  # steps
        self._part = 1.0  # of a thing that this rank counts
        self._source = self._order = None  # of the state that this generation begins with

    def call(self, main, args, kwargs):
        if self._control:
            self._change()
        elif not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
        while True:
            try:
                # DTensor keeps what it has worked out for equal meshes. The name makes them differ: the groups, and this process's rank,
                # do.
                self.mesh = init_device_mesh(self.device.type, (self.size,), mesh_dim_names=(f"ranks{self.generation}",))
                result = main(self, *args, **kwargs)
                self._finish()
                return result
            except Again:
                pass
            except (RuntimeError, Interrupted) as error:
                if not self._control or not self._is_of_peers(error):
                    raise
                self._interrupted = Interrupted(str(error))
            self._change()

    def _is_of_peers(self, error):
        """False: an error of main's own."""
        told = isinstance(error, (Interrupted, dist.DistError)) or any(word in str(error) for word in _OF_PEERS)
        return told or self._control.wait_for_abort(ORDER_S)

    # ---- from one generation to the next

    def _parts(self):
        live = [self._held.part((self._holds, self.step), self.rank, self._numbers())] if self._held else []
        return live + self._fresh + self._copies + disk.parts(self._disk)

    def _start(self, order):
        if self._copying:  # that of a step which was given up
            self._sever()
            self._fresh, self._copying = self._copying.end(), None
        return super()._start(order)

    def _connect(self, group, order):
        group.join("move", order["member"], order["members"])

    def _join(self, group, order):
        me, members = order["member"], order["members"]
        self._order = order
        mine = self._parts()
        saved = self._shared.newest() if self._disk else -1
        group.publish(f"parts/{me}", shards.pack((saved, [p.header() for p in mine])))
        told = [shards.unpack(group.read(f"parts/{i}")) for i in range(members)]
        offers = [(i, *header, k) for i, (_, headers) in enumerate(told) for k, header in enumerate(headers)]
        chosen = [offers[i] for i in layout.choose([o[:4] for o in offers])]
        if chosen and chosen[0][1][1] < max(step for step, _ in told):
            chosen = []  # what all nodes see is newer
        self._source = shards.Source(group, me, order["world"], chosen, mine) if chosen else None
        if order["rank"] < 0:
            if self._source:
                self._source.give()
            self._held, self._copies, self._fresh = None, [], []
            return time.monotonic(), 0
        group.join_world("train", order["rank"], order["world"])
        self._connected = time.monotonic()
        return None

    def make(self, module, *args, **named):
        """module(*args, **named), for hold(): its parameters get no first values if other ranks have the state, which takes long for large
        modules. Random numbers that are drawn after it are the same in either case."""
        devices = [torch.cuda.current_device()] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), NoFirstValues() if self._source else contextlib.nullcontext():
            return module(*args, **named)

    def hold(self, model, optimizer, *, scheduler=None, extra=None, clip=None, init=None):
        """What makes up the state, of this generation: it is filled from the ranks of the one before, or from the newest checkpoint.
        Without either, init() is called, if there is one; it must make the same on all ranks. scheduler, extra, clip: as in Elastic."""
        self.scheduler, self._clip, self._optimizer = scheduler, clip, optimizer
        others = dict(extra or {})
        if scheduler is not None:
            others["scheduler"] = scheduler
        held = shards.Held(model, optimizer, others, self.device)
        moved = 0
        if self._source:
            numbers, moved = self._source.fill(held)
            self._take(numbers)
        else:
            self._fill_from_files(held, init)
        self._held, self._source = held, None
        self._real_step, self._real_zero = local_step(optimizer), optimizer.zero_grad
        optimizer.step = functools.wraps(self._real_step)(lambda *a, **k: self._optimizer_step(*a, **k))
        optimizer.zero_grad = lambda *_, **__: None  # cleared where a step begins
        self._shared.rank, self._shared.size = self.rank, self.size
        if self._control:
            self._started(self._connected, moved)
        self._copy()

    def _fill_from_files(self, held, init):
        """There is nothing in the ranks' memory, or not enough of it: as after a start."""
        if self._control:  # no rank finds a checkpoint that another has not found
            self._shared.wait()
            self._sum(0)
        if self._shared.newest() >= 0:
            self._take(self._shared.load(lambda note: (held.adopt(note), held.pieces())), self._shared)
            return
        self._take({"step": 0, "losses": [], "loss": None})
        if init is not None:
            init()

    def _has_copies(self):
        return self.size > 1 and self._replicas and not self._held.replicated()

    def _own_part(self):
        return self._held.part((self.generation, self.step), self.rank, self._numbers())

    def _copy(self):
        if self._has_copies():
            self._copying = shards.Copying(self._group, self._own_part(), self.rank, self.size, self._replicas)

    # ---- the loop

    def batches(self, dataset, *, batch, micro, epochs=1, steps=None, shuffle=True, collate=default_collate, mesh=None):
        """Yields this rank's micro-batches, as many on each rank. After each, call backward() and optimizer.step(). mesh: that along which
        ranks take different samples (default: all do); ranks along other dimensions, as those of tensor parallelism, take the same."""
        if batch % micro:
            raise ValueError(f"hspmd: batch {batch} is no multiple of micro {micro}")
        self.batch, self.micro = batch, micro
        self.samples_from(dataset, shuffle=shuffle, collate=collate)
        total = steps if steps is not None else epochs * len(dataset) // batch
        place, places = (mesh.get_local_rank(), mesh.size()) if mesh is not None else (self.rank, self.size)
        self._total = total
        turns, count, self._part = -(-batch // micro // places), batch // micro, places / self.size
        while self.step < total:
            self._begin_step()
            for turn in range(turns):
                number = turn * places + place
                self._last, self._counts = turn == turns - 1, number < count
                # All must take part in each pass. One without a micro-batch of its own passes the last, which counts nothing there.
                samples = self.samples(min(number, count - 1))
                self._in_micro = True
                yield to_device(samples, self.device)
                if self._in_micro:
                    raise ValueError("hspmd: backward() was not called for a micro-batch")
            if self._in_step and not self._interrupted:
                raise ValueError("hspmd: optimizer.step() was not called after the last micro-batch of a step")
            if self._interrupted or self._stopping:
                raise Again

    def backward(self, loss, n=None):
        """As that of Elastic."""
        self._in_micro = False
        n = float((self.micro if n is None else n) if self._counts else 0)
        (loss * n).backward()
        self._count(float(loss.detach()) * n, n)

    def _optimizer_step(self, closure=None):
        if closure is not None:
            raise TypeError("hspmd: optimizer.step() with a closure")
        if self._last and self._in_step:
            self._commit()

    def _sum(self, *numbers):
        return self._group.total(*numbers) if self._group else list(numbers)

    def _gradients(self):
        """What this rank has of them. Raises Interrupted."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        try:
            return [shards.as_parameter(p) for p in parameters]
        except RuntimeError as error:
            raise Interrupted(str(error)) from error

    @torch.no_grad()
    def _square_of_norm(self, gradients):
        """This rank's share of it."""
        found = [g for g in gradients if shards.local(g).numel()]
        norms = torch._foreach_norm([shards.local(g) for g in found], dtype=torch.float32)
        shares = torch.tensor([shards.share(g, self.size) for g in found], dtype=torch.float64)
        return float((torch.stack(norms).cpu().double() ** 2 * shares).sum()) if found else 0.0

    def _vote(self):
        """Of the sums, the first of all the others is of ranks that want a checkpoint, then the weight of all ranks, the square of the
        gradients' norm, and the time if rank 0 wants checkpoints on the nodes' disks."""
        if self._copying:
            self._fresh, self._copying = self._copying.wait(), None
        gradients = self._gradients()
        square = self._square_of_norm(gradients) if self._clip is not None else 0.0
        due = self.rank == 0 and self._shared.due()
        counts = self._loss_sum * self._part, self._weight * self._part
        return self._sum(self._told_to_stop(), *counts, float(due), self._weight, square, self._stamp(self._local.due()))

    def _stamp(self, wanted):
        return time.time() if wanted and self.rank == 0 and self._disk else 0.0

    @torch.no_grad()
    def _before_step(self, sums):
        """Gradients are means over the places of sums over things: they become means over things, no longer than `clip`. As many ranks
        count a thing as there are in a place."""
        factor = self.size / sums[1]
        if self._clip is not None:
            self.grad_norm = factor * sums[2] ** 0.5
            factor *= min(self._clip / (self.grad_norm + 1e-6), 1.0)
        for g in self._gradients():
            shards.local(g).mul_(factor)

    def _after(self, sums):
        copied = self._fresh
        if copied:
            self._copies, self._fresh = copied, []
        if sums[3] and self._held and (copied or not self._has_copies()):
            disk.save(self._local, sums[3], copied or [self._own_part().copy()])
        if self.step % self._copy_steps == 0 and self.step < self._total and not self._stopping and not self._interrupted:
            self._copy()
        if sums[0]:
            self._save()

    # ---- checkpoints, end

    def _save(self):
        if self._shared.folder and self._held and self._shared.kept_step != self.step:  # the same on all ranks
            text = self._held.part((self.generation, self.step), self.rank, self._numbers()).text
            store = self._group.store if self.size > 1 else None
            self._shared.save(self.step, self.generation, text, self._held.pieces(self.rank), store)

    def _save_and_wait(self):
        self._save()
        if self._disk and self._held:
            self._save_on_disks()
        self._wait_written()

    def _save_on_disks(self):
        """At the end, when no step follows that would wait for copies."""
        try:
            stamp = self._sum(self._stamp(True))[0]
            self._copy()
            disk.save(self._local, stamp, self._copying.wait() if self._copying else [self._own_part().copy()])
            self._copying = None
        except Interrupted as error:
            print(f"hspmd: not saved on the nodes' disks: {error}", file=sys.stderr)

    def _finish(self):
        self._save_and_wait()
        try:  # nobody closes its end while another still reads the last vote
            self._sum(0)
        except Interrupted:
            pass
