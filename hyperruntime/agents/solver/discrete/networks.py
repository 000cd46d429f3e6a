"""Sorting networks with few comparators.

All inputs of zeros and ones are sorted at once: bit ``t`` of a channel's integer is its value for
the input ``t``. A start is a network of Batcher (Knuth, The Art of Computer Programming 3,
algorithm 5.2.2M), or grows by the comparators that leave the fewest different vectors.
"""

import random

import numpy as np
from discrete.kind import Kind

PATIENCE = 400
DEEP = 1e-4  # of a comparator: among networks of a size, those with fewer layers are better
NEAR = 1.02
MANY = 1000  # vectors: with more, only a few comparators are compared
FEW = 16


class Sorting(Kind):
    """State: a list of comparators ``[i, j]`` with ``i < j``; it sorts, and none is idle."""

    size = 0.3

    def __init__(self, n):
        self.n = n
        self.starts, self.changes = STARTS, CHANGES
        super().__init__()
        self.inputs = [inputs_of(channel, n) for channel in range(n)]
        self.sorted = self.inputs
        for i, j in batcher_comparators(n):
            self.sorted = after(self.sorted, i, j)

    def merit(self, network):
        layers = [0] * self.n
        for i, j in network:
            layers[i] = layers[j] = max(layers[i], layers[j]) + 1
        return -len(network) - DEEP * max(layers)

    def load(self, answer):
        return [list(pair) for pair in answer]

    def answer(self, network):
        return network

    def improved(self, network, clock, rng):
        """Return a network that random changes did not make smaller for a long time."""
        draw = random.Random(int(rng.integers(1 << 62)))
        network, states = self.run(network, [self.inputs])
        tries = 0
        while tries < PATIENCE and not clock.over():
            tries += 1
            changed, first = mutated(network, self.n, draw)
            found, after_each = self.run(changed[first:], states[: first + 1])
            found = self.repaired(network[:first] + found, after_each, len(network), draw)
            if found:
                tries = tries if len(found[0]) == len(network) else 0
                network, states = found
        return network

    def run(self, comparators, states):
        """Return the comparators that are not idle, and the channels before and after each.

        Args:
            comparators: to be appended.
            states: the channels before, the last ones of the list.
        """
        kept, states = [], list(states)
        for i, j in comparators:
            now = states[-1]
            if now[i] & now[j] != now[i]:
                states.append(after(now, i, j))
                kept.append([i, j])
        return kept, states

    def repaired(self, network, states, most, draw):
        """Return the network with comparators that sort the rest; None if it takes too many."""
        while True:
            now = states[-1]
            wrong = [k for k in range(self.n) if now[k] != self.sorted[k]]
            if not wrong:
                return network, states
            if len(network) >= most or len(wrong) > 2 * (most - len(network)):
                return None
            pairs = [(i, j) for i in wrong for j in wrong if i < j and now[i] & now[j] != now[i]]
            i, j = draw.choice(pairs)
            network = [*network, [i, j]]
            states.append(after(now, i, j))


def inputs_of(channel, n):
    half = 1 << channel
    bits = ((1 << half) - 1) << half
    for doubled in range(channel + 1, n):
        bits |= bits << (1 << doubled)
    return bits


def after(channels, i, j):
    now = list(channels)
    now[i], now[j] = channels[i] & channels[j], channels[i] | channels[j]
    return now


def mutated(network, n, draw):
    """Return a changed network, and the place of the first change."""
    k = draw.randrange(len(network))
    other = draw.randrange(len(network))
    changed = list(network)
    kind = draw.randrange(4)
    if kind == 0:
        del changed[k]
    elif kind == 1:
        changed[k] = sorted(draw.sample(range(n), 2))
    elif kind == 2:
        changed[k], changed[other] = changed[other], changed[k]
        k = min(k, other)
    else:
        del changed[k]
        changed.insert(other, sorted(draw.sample(range(n), 2)))
        k = min(k, other)
    return changed, k


def batcher_comparators(n):
    found = []
    top = 1 << ((n - 1).bit_length() - 1)
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            found += [[i, i + d] for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return found


def batcher(kind, rng, size):
    """Return Batcher's network with some comparators replaced by random ones."""
    network = batcher_comparators(kind.n)
    count = int(rng.integers(0, 1 + len(network) // 4))
    return completed(kind, network[: len(network) - count], rng) if count else network


def layered(kind, rng, size):
    """Return a network that begins with layers of a hypercube, one for each bit of a channel."""
    bits = (kind.n - 1).bit_length()
    order = rng.permutation(bits)[: rng.integers(1, bits + 1)]
    layers = [[i, i | 1 << b] for b in order.tolist() for i in range(kind.n) if not i >> b & 1]
    return completed(kind, [pair for pair in layers if pair[1] < kind.n], rng)


def completed(kind, network, rng):
    """Return the network with comparators that leave few different vectors, until it sorts."""
    network = list(network)
    seen = outputs(network, kind.n)
    pairs = [(i, j) for j in range(kind.n) for i in range(j)]
    while (count := int(np.count_nonzero(seen))) > kind.n + 1:
        vectors = np.flatnonzero(seen)
        counts = np.full(len(pairs), count)
        few = range(len(pairs)) if count < MANY else rng.permutation(len(pairs))[:FEW].tolist()
        for k in few:
            counts[k] = np.count_nonzero(exchanged(vectors, *pairs[k], kind.n))
        near = np.flatnonzero(counts <= max(counts.min() * NEAR, counts.min() + 1))
        i, j = pairs[int(rng.choice(near))]
        seen = exchanged(vectors, i, j, kind.n)
        network.append([i, j])
    return network


def outputs(network, n):
    """Return which vectors the network makes, as an array of booleans."""
    seen = np.ones(1 << n, dtype=bool)
    for i, j in network:
        seen = exchanged(np.flatnonzero(seen), i, j, n)
    return seen


def exchanged(vectors, i, j, n):
    """Return which vectors there are after a comparator."""
    swap = (vectors >> i) & ~(vectors >> j) & 1
    seen = np.zeros(1 << n, dtype=bool)
    seen[vectors ^ (swap << i | swap << j)] = True
    return seen


def regrow(kind, network, rng, size):
    """Keep a part of a good network from its beginning, and complete it."""
    share = min(0.9, float(rng.exponential(size)))
    return completed(kind, network[: int(len(network) * (1 - share))], rng)


def shake(kind, network, rng, size):
    """Change a good network a little where that is possible without more comparators."""
    return network


def mirror(kind, network, rng, size):
    """Turn a good network upside down, keep a part from its beginning, and complete it."""
    top = kind.n - 1
    turned = [[top - j, top - i] for i, j in network]
    share = min(0.9, float(rng.exponential(size)))
    return completed(kind, turned[: int(len(turned) * (1 - share))], rng)


STARTS = {"batcher": batcher, "layered": layered}
CHANGES = {"regrow": regrow, "shake": shake, "mirror": mirror}
