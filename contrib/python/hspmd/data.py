# SPDX-License-Identifier: Apache-2.0
"""Which samples a micro-batch has, and who takes it. A sample's place depends on the step alone, and not on the ranks, so that each is
trained once however the ranks change."""


def even_shares(count, ranks):
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def finish(seconds, shares):
    """When the last rank is done. seconds: of one micro-batch on each rank."""
    return max(s * n for s, n in zip(seconds, shares))


def shares(count, seconds, now):
    """Divides `count` micro-batches among ranks, of which each takes seconds[rank] for one, so that the last is done as early as possible:
    each next one goes to the rank that would be done with it first. Keeps the shares `now` unless that is at least 5 % faster. A rank of
    which no time is known (0) keeps its share."""
    if not all(s > 0 for s in seconds) or count < len(seconds):
        return now
    best = [1] * len(seconds)
    for _ in range(count - len(seconds)):
        rank = min(range(len(seconds)), key=lambda r: ((best[r] + 1) * seconds[r], r))
        best[rank] += 1
    return best if finish(seconds, best) < 0.95 * finish(seconds, now) else now


def mix(*numbers):
    """A seed of 63 bits of several numbers (splitmix64)."""
    z = 0
    for n in numbers:
        z = (z + n + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z >> 1


class Order:
    """The order of a dataset's samples over all epochs. permutation(size, seed): a list."""

    def __init__(self, size, seed, permutation):
        self._size, self._seed, self._permutation = size, seed, permutation
        self._epoch, self._list = -1, None

    def sample(self, position):
        epoch, at = divmod(position, self._size)
        if self._permutation is None:
            return at
        if epoch != self._epoch:
            self._epoch, self._list = epoch, self._permutation(self._size, mix(self._seed, epoch))
        return self._list[at]
