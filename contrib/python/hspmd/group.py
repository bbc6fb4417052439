# SPDX-License-Identifier: Apache-2.0
"""The ranks of one generation, connected: made anew for each, and given up at once if a peer is gone."""
import datetime
import os
import socket
import threading
import time

import torch
import torch.distributed as dist

from hspmd.control import Interrupted
from hspmd.votes import Votes

CONNECT_S = 120
COLLECTIVE_S = 1800  # an abort ends a wait; this is for a rank that is told of none
BUCKET_BYTES = 25 << 20


def _sockets():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            at = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if at.startswith("socket:"):
            found[int(name)] = at
    return found


def _shut(fd):
    try:
        with socket.socket(fileno=os.dup(fd)) as s:
            if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
                s.getpeername()  # not one that listens: gloo ends the process if that is shut
                s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Group:
    """check: raises if what is under way is to be given up."""

    def __init__(self, device, check):
        self.device = device
        self._check = check
        self._before = _sockets()
        self._own = None  # sockets of this group, once it is complete; until then all that are new
        self._changed = threading.Condition()
        self._cut = False
        self.store = self._group = self._votes = None
        self._groups = {}  # of those that were joined, by name
        self._host = self._address = None  # of rank 0, and that from which this rank has reached it
        self.rank = self.size = 0

    def _reach(self, host, port):
        """Waits until the store listens."""
        until = time.monotonic() + CONNECT_S
        while True:
            self._check()
            try:
                with socket.create_connection((host, port), 5) as reached:
                    self._address = reached.getsockname()[0]
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise Interrupted(f"{host}:{port}: {error}") from error
            time.sleep(0.02)

    def open(self, host, port, serves):
        """Connects to the store, which the process that `serves` makes."""
        limit = datetime.timedelta(seconds=CONNECT_S)
        self._host = host
        if not serves:
            self._reach(host, port)
        self.store = self._connect(lambda: dist.TCPStore(host, port, None, serves, limit, wait_for_workers=False))

    def publish(self, key, value):
        self._try(lambda: self.store.set(key, value))

    def read(self, key):
        return self._try(lambda: self.store.get(key))

    def join(self, name, rank, size):
        """Makes the group of this name in the store, of `size` ranks, or goes back to it."""
        self.rank, self.size = rank, size
        self._check()
        if name not in self._groups:
            make = self._make if size > 1 else lambda store: None
            self._groups[name] = self._connect(lambda: make(dist.PrefixStore(name, self.store)))
            self._own = self._new_sockets()
        self._group = self._groups[name]
        if self._cut:
            raise Interrupted("given up while it was made")

    def _new_sockets(self):
        return {fd: at for fd, at in _sockets().items() if self._before.get(fd) != at}

    def _connect(self, call):
        """What call() returns. On the host, another thread calls it, which is left behind if this group is given up: a wait for a peer that
        is to connect to this process has no socket yet that could be shut."""
        if self.device.type == "cuda":  # NCCL connects later, and abort() ends its waits
            return self._try(call)
        ended = []

        def run():
            try:
                end = self._try(call), None
            except Exception as error:
                end = None, error
            with self._changed:
                ended.append(end)
                self._changed.notify_all()

        threading.Thread(target=run, name="hspmd-connect", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: ended or self._cut, CONNECT_S)
        if not ended:
            raise Interrupted("given up while it was made" if self._cut else f"a peer has not come within {CONNECT_S} s")
        result, error = ended[0]
        if error:
            raise error
        return result

    def _make(self, store):
        limit = datetime.timedelta(seconds=COLLECTIVE_S)
        if self.device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            return dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        return dist.ProcessGroupGloo(store, self.rank, self.size, limit)

    def join_world(self, name, rank, size):
        """Makes torch.distributed's default group. All sockets that are opened from now on count as the group's: further groups may be
        made."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._own = None
        self._check()
        kind = "nccl" if self.device.type == "cuda" else "gloo"
        limit = datetime.timedelta(seconds=COLLECTIVE_S)
        store = dist.PrefixStore(name, self.store)
        self._connect(lambda: dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=limit))
        if self._cut:
            raise Interrupted("given up while it was made")

    def join_votes(self, rank, size):
        """Makes what total() needs, among the ranks that train."""
        self._check()
        if size > 1:
            store = dist.PrefixStore("votes", self.store)
            self._votes = self._connect(lambda: Votes(store, self._host, self._address, rank, size, CONNECT_S, COLLECTIVE_S))
        if self._own is not None:
            self._own = self._new_sockets()
        if self._cut:
            raise Interrupted("given up while it was made")

    def total(self, *numbers):
        """The sums over all ranks that train of a few numbers of the host's."""
        self._check()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # no number speaks for what is still under way
        return self._try(lambda: self._votes.total(numbers)) if self._votes else list(numbers)

    def sever(self):
        """Ends all waits in this group, of this process and of its peers. May be called by another thread."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()
        own = self._own
        now = _sockets()
        for fd, at in now.items():
            if (own.get(fd) if own is not None else None if self._before.get(fd) == at else at) == at:
                _shut(fd)
        if self.device.type == "cuda":
            for group in [g for g in self._groups.values() if g]:
                group.abort()

    def _try(self, call):
        try:
            return call()
        except (RuntimeError, ValueError, OSError) as error:
            raise Interrupted(str(error)) from error

    def sum(self, tensor):
        if self.size > 1:
            self._check()
            self._try(lambda: self._group.allreduce([tensor]).wait())
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # the host decides: nothing may be enqueued behind a sum that fails

    def send(self, tensor, to):
        return self._try(lambda: self._group.send([tensor], to, 0))

    def receive(self, tensor, of):
        return self._try(lambda: self._group.recv([tensor], of, 0))

    def wait(self, work):
        for one in work:
            self._try(one.wait)
