"""Golomb rulers: marks whose distances are all different, on a short ruler.

The marks of modular rulers are parts of difference sets. Sources: Singer 1938,
doi:10.1090/S0002-9947-1938-1501951-4; Bose 1942.
"""

import random
from itertools import pairwise

from discrete.kind import Kind

PATIENCE = 150
MULTIPLIERS = 20
WIDER = 1.15


class Golomb(Kind):
    """State: the marks in ascending order, the first one is 0."""

    size = 0.3

    def __init__(self, n):
        self.n = n
        self.starts, self.changes = STARTS, CHANGES
        super().__init__()

    def merit(self, marks):
        return -float(marks[-1])

    def load(self, answer):
        return moved_to_zero(answer)

    def answer(self, marks):
        return marks

    def improved(self, marks, clock, rng):
        """Return a ruler that is not shortened by moving an end and up to two more marks."""
        draw = random.Random(int(rng.integers(1 << 62)))
        tries = 0
        while tries < PATIENCE and not clock.over():
            length = marks[-1]
            kept = marks[1:] if draw.random() < 0.5 else marks[:-1]
            for _ in range(draw.randrange(3)):
                kept = without(kept, 1, draw)
            found = filled(kept, self.n, length - 1, draw)
            tries += 1
            if found:
                marks, tries = found, 0
        return marks


def moved_to_zero(marks):
    first = min(marks)
    return sorted(mark - first for mark in marks)


def without(marks, count, draw):
    """Return marks of which random inner ones are taken away."""
    inner = marks[1:-1]
    kept = draw.sample(inner, max(0, len(inner) - count))
    return sorted([marks[0], *kept, marks[-1]])


def free_places(marks, used, width):
    """Return the places whose distances to all marks are new, as bits; bit ``width`` is place 0.

    Args:
        marks: integers of which the largest differs from the smallest by at most ``width``.
        used: the distances of the marks, as bits.
        width: a bound of all distances.
    """
    turned = int(format(used, f"0{width + 1}b")[::-1], 2)
    taken = 0
    for mark in marks:
        taken |= used << (width + mark) | turned << mark | 1 << (width + mark)
    return ~taken & ((1 << (3 * width)) - 1)


def filled(marks, n, length, draw):
    """Return a ruler of ``n`` marks, no longer than ``length``, with these marks; None if random
    places do not lead to one.
    """
    marks, width = list(marks), length + 1
    used = 0
    for k, mark in enumerate(marks):
        for other in marks[:k]:
            used |= 1 << abs(mark - other)
    while True:
        low, high = min(marks), max(marks)
        if high - low > length:
            return None
        if len(marks) == n:
            return moved_to_zero(marks)
        if low < 0:  # places are counted from the first mark
            marks = [mark - low for mark in marks]
            low, high = 0, high - low
        first = width + high - length
        places = (free_places(marks, used, width) >> first) & ((1 << (2 * length - high + low)) - 1)
        place = random_bit(places, draw)
        if place is None:
            return None
        mark = place + first - width
        gaps = [abs(mark - other) for other in marks]
        if len(set(gaps)) < len(gaps):  # it is in the middle of two marks
            return None
        for gap in gaps:
            used |= 1 << gap
        marks.append(mark)


def random_bit(bits, draw):
    """Return the place of a random one, not quite uniformly; None if there is none."""
    if not bits:
        return None
    start = draw.randrange(bits.bit_length())
    high = bits >> start
    return start + (high & -high).bit_length() - 1


def greedy(kind, rng, size):
    """Return a ruler whose next mark is one of the first three possible places."""
    draw = random.Random(int(rng.integers(1 << 62)))
    marks, used = [0], set()
    while len(marks) < kind.n:
        mark, skip = marks[-1] + 1, draw.choice((0, 0, 1, 2))
        while True:
            gaps = {mark - other for other in marks}
            if not gaps & used:
                if not skip:
                    break
                skip -= 1
            mark += 1
        used |= gaps
        marks.append(mark)
    return marks


def modular(kind, rng, size):
    """Return the shortest part of a random modular ruler, multiplied by random factors."""
    draw = random.Random(int(rng.integers(1 << 62)))
    while True:
        prime = draw.choice([p for p in range(kind.n - 1, kind.n + 7) if is_prime(p)])
        marks, modulus = draw.choice((singer, bose))(prime, draw)
        distances = {(a - b) % modulus for a in marks for b in marks if a != b}
        if len(marks) >= kind.n and len(distances) == len(marks) * (len(marks) - 1):
            break
    best = None
    for _ in range(MULTIPLIERS):
        factor = draw.randrange(1, modulus)
        turned = sorted({mark * factor % modulus for mark in marks})
        if len(turned) == len(marks) and is_ruler(turned, modulus):
            turned += [mark + modulus for mark in turned]
            for k in range(len(marks)):
                part = turned[k : k + kind.n]
                if best is None or part[-1] - part[0] < best[-1] - best[0]:
                    best = part
    return moved_to_zero(best) if best else greedy(kind, rng, size)


def is_ruler(marks, modulus):
    gaps = [(a - b) % modulus for a in marks for b in marks if a != b]
    return len(gaps) == len(set(gaps))


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def powers(prime, degree, count, draw):
    """Yield the coefficients of the powers of x modulo a random polynomial, the constant first."""
    rule = [draw.randrange(prime) for _ in range(degree)]
    now = [1] + [0] * (degree - 1)
    for _ in range(count):
        yield now
        top = now[-1]
        now = [(a + top * b) % prime for a, b in zip([0, *now], rule, strict=False)]


def singer(prime, draw):
    """Return numbers, and the modulus; they are a modular ruler if the polynomial was primitive."""
    modulus = prime * prime + prime + 1
    found = powers(prime, 3, modulus, draw)
    return [k for k, power in enumerate(found) if not power[2]], modulus


def bose(prime, draw):
    """Return numbers, and the modulus; they are a modular ruler if the polynomial was primitive."""
    modulus = prime * prime - 1
    found = powers(prime, 2, modulus, draw)
    return [k for k, power in enumerate(found) if power[1] == 1], modulus


def drop(kind, marks, rng, size):
    """Put random marks of a good ruler elsewhere; it may become a little longer."""
    draw = random.Random(int(rng.integers(1 << 62)))
    count = max(1, min(kind.n - 2, round(size * kind.n)))
    for _ in range(20):
        found = filled(without(marks, count, draw), kind.n, int(marks[-1] * WIDER), draw)
        if found:
            return found
    return marks


def stretch(kind, marks, rng, size):
    """Change the gaps of two neighbours of a good ruler, and take what is no ruler for it away."""
    draw = random.Random(int(rng.integers(1 << 62)))
    gaps = [b - a for a, b in pairwise(marks)]
    a, b = draw.sample(range(len(gaps)), 2)
    gaps[a], gaps[b] = gaps[b], gaps[a]
    marks, used, at = [0], set(), 0
    for gap in gaps:
        at += gap
        new = {at - mark for mark in marks}
        if not new & used:
            used |= new
            marks.append(at)
    for _ in range(20):
        found = filled(marks, kind.n, int(at * WIDER), draw)
        if found:
            return found
    return greedy(kind, rng, size)


STARTS = {"greedy": greedy, "modular": modular}
CHANGES = {"drop": drop, "stretch": stretch}
