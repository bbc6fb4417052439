# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which box of each tensor, and what must be sent so that other ranks hold other boxes. Needs nothing but Python.

A box is (offsets, lengths), one of each per dimension; a tensor without dimensions is one element. Boxes of one tensor are equal, or have
nothing in common: so DTensor's placements Shard and Replicate cut it."""


def volume(box):
    n = 1
    for length in box[1]:
        n *= length
    return n


def intersect(a, b):
    """None: they have nothing in common."""
    low = tuple(max(x, y) for x, y in zip(a[0], b[0]))
    lengths = tuple(min(x + n, y + m) - o for x, n, y, m, o in zip(a[0], a[1], b[0], b[1], low))
    return (low, lengths) if all(n > 0 for n in lengths) else None


def whole(shape):
    return (0,) * len(shape), tuple(shape)


def complete(shapes, holdings):
    """True: these boxes ({ tensor: box } of each holder) have all of every tensor. shapes: { tensor: shape }."""
    for name, shape in shapes.items():
        if sum(map(volume, {h[name] for h in holdings if name in h})) < volume(whole(shape)):
            return False
    return True


def choose(offers):
    """offers: a list of (holder, key, shapes, boxes); key is (generation, step). Returns the indices of those offers that make up the state
    of the latest step of which nothing is missing; none: there is none."""
    by_key = {}
    for i, (_, key, _, _) in enumerate(offers):
        by_key.setdefault(key, []).append(i)
    for key in sorted(by_key, key=lambda k: (k[1], k[0]), reverse=True):
        found = by_key[key]
        if complete(offers[found[0]][2], [offers[i][3] for i in found]):
            return found
    return []


def plan(sources, targets):
    """sources: a list of (holder, { tensor: box }); targets: { receiver: { tensor: box } }. Returns moves (index of the source, receiver,
    tensor, box). A receiver that has a part itself takes it from there; of several that could send one, that sends which has sent the
    fewest elements so far. So nothing is sent that could stay, and nothing twice to one receiver."""
    sent = {holder: 0 for holder, _ in sources}
    moves, known = [], {}
    for name in sorted({n for boxes in targets.values() for n in boxes}):
        placed = tuple((i, boxes[name]) for i, (_, boxes) in enumerate(sources) if name in boxes)
        wanted = tuple((to, boxes[name]) for to, boxes in sorted(targets.items()) if name in boxes)
        if (placed, wanted) not in known:  # most tensors are cut like others: a parameter's moments as itself
            known[placed, wanted] = list(_meetings(placed, wanted))
        for to, part, holders in known[placed, wanted]:
            source = min(holders, key=lambda i: (sources[i][0] != to, sent[sources[i][0]], i))
            if sources[source][0] != to:
                sent[sources[source][0]] += volume(part)
            moves.append((source, to, name, part))
    return moves


def _meetings(placed, wanted):
    """Of one tensor: (receiver, a part that it wants, the sources that have it)."""
    places = {}
    for source, box in placed:
        places.setdefault(box, []).append(source)
    for to, box in wanted:
        for place, holders in sorted(places.items()):
            part = intersect(place, box)
            if part:
                yield to, part, holders
