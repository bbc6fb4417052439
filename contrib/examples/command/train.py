#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer that needs nothing but Python, to try `hspmd run -- COMMAND` with (doc/trainers.md).

It fits a line to points with whole numbers, so that the result does not depend on the number of ranks. What a real trainer does for
elasticity is here, too: it takes its place from the environment, starts from its newest checkpoint, and ends within the notice. The
checkpoint has the last lines that it told, too: they are told again at a start, in case they were lost with a node.
"""
import argparse
import json
import os
import signal
import socket
import sys
import time

TOLD_AGAIN = 200  # steps

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--per-rank", type=int, required=True, help="samples of a step that a rank has")
parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
parser.add_argument("--step-s", type=float, default=0.05, help="least seconds of a step")
options = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = os.environ["HSPMD_CHECKPOINT"]
checkpoint = os.path.join(folder, "state.json")
steps_file = os.fdopen(int(os.environ["HSPMD_FD"]), "w", buffering=1)

told_to_end = False


def on_term(number, frame):
    global told_to_end  # only noted here: all ranks must end at the same step
    told_to_end = True


signal.signal(signal.SIGTERM, on_term)


def connect():
    """Rank 0 talks with all others. Its port is this generation's own."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        listener = socket.create_server(("", address[1]), backlog=world)
        return [listener.accept()[0].makefile("rw") for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection(address).makefile("rw")]
        except ConnectionRefusedError:
            time.sleep(0.02)


def exchange(peers, values):
    """The sums over all ranks, on all ranks."""

    def send(peer, what):
        peer.write(json.dumps(what) + "\n")
        peer.flush()

    def receive(peer):
        line = peer.readline()
        if not line:
            sys.exit("a rank is gone")
        return json.loads(line)

    if rank:
        send(peers[0], values)
        return receive(peers[0])
    for peer in peers:
        values = [a + b for a, b in zip(values, receive(peer))]
    for peer in peers:
        send(peer, values)
    return values


def tell(line):
    steps_file.write(json.dumps(line) + "\n")


def save(step, weight, told):
    with open(checkpoint + ".tmp", "w") as f:
        json.dump({"step": step, "weight": weight, "told": told}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(checkpoint + ".tmp", checkpoint)


step, weight, told = 0, 1 << 20, []
if os.path.exists(checkpoint):
    with open(checkpoint) as f:
        state = json.load(f)
    step, weight, told = state["step"], state["weight"], state["told"]
if rank == 0:
    for line in told:
        tell(line | {"again": True})
print(f"rank {rank} of {world} begins at step {step}", flush=True)

peers = connect()
batch = options.per_rank * world
while step < options.steps:
    began = time.monotonic()
    mine = range(rank * options.per_rank, (rank + 1) * options.per_rank)
    errors = [weight + (step * batch + sample) * 7919 % 1009 for sample in mine]
    squares, gradient, ending = exchange(peers, [sum(e * e for e in errors), sum(errors), int(told_to_end)])
    weight -= gradient // (8 * batch)
    if rank == 0:
        told = [*told, {"step": step, "loss": squares / batch, "tokens": batch}][-TOLD_AGAIN:]
        tell(told[-1])
    step += 1
    if rank == 0 and (ending or step % options.save_every == 0 or step == options.steps):
        save(step, weight, told)
    if ending and step < options.steps:
        sys.exit(85)  # saved, and more is to be done
    time.sleep(max(0, options.step_s - (time.monotonic() - began)))
print(f"rank {rank}: weight {weight} after step {step}")
