# SPDX-License-Identifier: Apache-2.0
"""Sums of a few numbers over all ranks, at each step: over sockets of their own, in a tree, by the thread that trains. In gloo each
message goes through two further threads, and takes ten times as long. Needs nothing but Python."""
import hmac
import ipaddress
import secrets
import socket
import struct

CHILDREN = 8  # of a rank
GREETING_S = 5.0  # for one who connects to say who it is
_TOKEN_BYTES = 16
_RANK = struct.Struct("!q")


def children_of(rank, size):
    return range(CHILDREN * rank + 1, min(CHILDREN * rank + CHILDREN + 1, size))


def parent_of(rank):
    return (rank - 1) // CHILDREN


def _listen():
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=CHILDREN, dualstack_ipv6=True)
    except (OSError, ValueError):
        return socket.create_server(("", 0), backlog=CHILDREN)


def _receive(of, count):
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = of.recv_into(view)
        if not got:
            raise ConnectionError("a peer has closed its connection")
        view = view[got:]
    return data


class Votes:
    """store: has set(key, value) and get(key), which waits for the value; for this alone, the same for all ranks. host: under which rank 0 is
    reached; own: the address from which this rank has reached it; rank 0: None. Waits connect_s for peers here, and wait_s later. All that
    fails is an OSError, or the store's error."""

    def __init__(self, store, host, own, rank, size, connect_s, wait_s):
        self._parent, self._children = None, []
        children = children_of(rank, size)
        if rank == 0:
            store.set("token", secrets.token_bytes(_TOKEN_BYTES))
        token = bytes(store.get("token"))
        listens = _listen() if children else None
        try:
            if listens:
                # From rank 0's own node, others reach this rank as they reach rank 0.
                away = own is not None and not ipaddress.ip_address(own.partition("%")[0]).is_loopback
                store.set(f"rank{rank}", f"{listens.getsockname()[1]} {own if away else host}")
            if rank:
                port, _, name = bytes(store.get(f"rank{parent_of(rank)}")).decode().partition(" ")
                self._parent = socket.create_connection((name, int(port)), connect_s)
                self._parent.sendall(token + _RANK.pack(rank))
            self._children = self._accept(listens, token, children, connect_s) if listens else []
            for one in self._all():
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one.settimeout(wait_s)
        except BaseException:
            self.close()
            raise
        finally:
            if listens:
                listens.close()

    @staticmethod
    def _accept(listens, token, children, connect_s):
        """Their connections, in order; anybody else's is closed."""
        found = {}
        listens.settimeout(connect_s)
        while len(found) < len(children):
            one, _ = listens.accept()
            try:
                one.settimeout(GREETING_S)
                told = _receive(one, _TOKEN_BYTES + _RANK.size)
                (rank,) = _RANK.unpack(told[_TOKEN_BYTES:])
            except OSError:
                one.close()
                continue
            if hmac.compare_digest(bytes(told[:_TOKEN_BYTES]), token) and rank in children and rank not in found:
                found[rank] = one
            else:
                one.close()
        return [found[rank] for rank in children]

    def _all(self):
        return [one for one in (self._parent, *self._children) if one is not None]

    def total(self, numbers):
        """The sums over all ranks of as many numbers of each, the same to the bit on all of them."""
        form = struct.Struct(f"!{len(numbers)}d")
        for child in self._children:
            numbers = [a + b for a, b in zip(numbers, form.unpack(_receive(child, form.size)))]
        data = form.pack(*numbers)
        if self._parent:
            self._parent.sendall(data)
            data = _receive(self._parent, form.size)
        for child in self._children:
            child.sendall(data)
        return list(form.unpack(data))

    def close(self):
        for one in self._all():
            one.close()
