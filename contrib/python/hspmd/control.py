# SPDX-License-Identifier: Apache-2.0
"""The connection to the stand-in (runtime/command/standin.h): orders come, answers go, as lines of JSON. Needs nothing but Python."""
import json
import os
import socket
import threading

# The loop of the user is that of one process. What would tell libraries otherwise is taken away.
_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "NNODES", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS",
)  # fmt: skip

_local_rank = _first_rank = 0


def first_rank():
    """This process's number when it was started, before it knows of any generation."""
    return _first_rank


def local_rank():
    """This process's number among those of its node when it was started: the number of its GPU."""
    return _local_rank


def set_local_rank(number):
    """For one that has been left fewer GPUs to see."""
    global _local_rank
    _local_rank = number


class Gone(Exception):
    """The stand-in has ended."""


class Interrupted(Exception):
    """What was under way is given up: an abort has come, or a peer is gone."""


class Control:
    """Orders of the stand-in. A thread reads them, and answers whether this process lives; all else is called by the thread that trains.

    sever: called by the reading thread when an abort comes, so that the thread that trains stops waiting for peers. connect: called by it
    with an order to connect for the generation that is to follow; it must not wait."""

    def __init__(self, connection, sever=lambda: None, connect=lambda order: None):
        self._socket = connection
        self._sever, self._connect = sever, connect
        self._changed = threading.Condition()
        self._saying = threading.Lock()
        self._orders = []
        self._gone = False
        self.stop = None  # the order to stop after the current step, once it has come
        self.aborted = False  # an abort has come, and is not answered yet
        threading.Thread(target=self._read, name="hspmd", daemon=True).start()

    def _read(self):
        try:
            with self._socket.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    self._receive(json.loads(line))
        except (OSError, Gone):
            pass
        with self._changed:
            self._gone = True
            self._changed.notify_all()
        self._sever()

    def _receive(self, order):
        if order["type"] == "ping":
            self.say(type="pong")
            return
        if order["type"] == "connect":
            self._connect(order)
            return
        with self._changed:
            if order["type"] == "stop":
                self.stop = order
            else:
                self._orders.append(order)
            abort = order["type"] == "abort"
            self.aborted |= abort
            self._changed.notify_all()
        if abort:
            self._sever()

    def say(self, **message):
        """Sends a line. Raises Gone."""
        try:
            with self._saying:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Gone from error

    def next(self, timeout=None):
        """Waits for the next order other than stop, and takes it. None: the time is over. Raises Gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._gone or (self.stop and self.stop.get("end")), timeout)
            if self._orders:
                order = self._orders.pop(0)
                if order["type"] == "abort":
                    self.aborted = any(o["type"] == "abort" for o in self._orders)
                    self.stop = None
                return order
            if self.stop and self.stop.get("end"):
                return self.stop
            if self._gone:
                raise Gone
            return None

    def wait_for_stop(self):
        """Waits for the stop on which all ranks have agreed, although it may not have come to this one yet. Returns it; None: another order
        has come instead. Raises Gone."""
        with self._changed:
            self._changed.wait_for(lambda: self.stop or self._orders or self._gone)
            if self._gone and not self.stop:
                raise Gone
            order, self.stop = self.stop, None
            return order

    def wait_for_abort(self, timeout):
        """False: none has come in this time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.aborted or self._gone, timeout)

    def check(self):
        """Raises Interrupted if an abort has come."""
        if self.aborted:
            raise Interrupted("told to give up")


def connect(environment=None):
    """The socket to the stand-in; None: this process was not started by hspmd. Takes away what belongs to it in the environment."""
    global _local_rank, _first_rank
    e = os.environ if environment is None else environment
    if "HSPMD_FD" not in e or "HSPMD_GENERATION" not in e:
        return None
    connection = socket.socket(fileno=int(e.pop("HSPMD_FD")))
    _local_rank, _first_rank = int(e.get("LOCAL_RANK", 0)), int(e.get("RANK", 0))
    for name in _RANKS:
        e.pop(name, None)
    return connection
