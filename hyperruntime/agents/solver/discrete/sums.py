"""Sets of integers with many differences and few sums.

A start is small and random, or the image of a simplex of ``d`` dimensions: the sum of two of its
points has fewer values than the difference, the more so the more dimensions it has. Source:
Gyarmati, Hennecart and Ruzsa 2007, doi:10.7169/facm/1229618746.
"""

import math
import random
from itertools import combinations

from discrete.kind import Kind

PATIENCE = 150
LARGEST = 1 << 19
MOST = 1500


class Sums(Kind):
    """State: a sorted list of integers with 0."""

    size = 0.1

    def __init__(self):
        self.starts, self.changes = STARTS, CHANGES
        super().__init__()

    def merit(self, numbers):
        return value(max(numbers), *measured(numbers))

    def load(self, answer):
        return sorted(answer)

    def answer(self, numbers):
        return numbers

    def improved(self, numbers, clock, rng):
        """Return a set that a random number more or less did not improve for a long time."""
        draw = random.Random(int(rng.integers(1 << 62)))
        best, sets = set(numbers), measured(numbers)
        merit, tries = value(max(best), *sets), 0
        while tries < PATIENCE and not clock.over():
            tries += 1
            changed = changed_set(best, draw)
            found = measured_with(best, changed, sets)
            new = value(max(changed), *found)
            if new >= merit:
                tries = 0 if new > merit + 1e-12 else tries
                best, sets, merit = changed, found, new
        return sorted(best)


def changed_set(numbers, draw):
    """Return the set with a number more or less; it keeps 0 and another one."""
    some = draw.sample(sorted(numbers), 3) if len(numbers) > 2 else [0, 0, max(numbers)]
    if len(numbers) > 2 and draw.random() < 0.3:
        return numbers - {some[0] or max(numbers)}
    new = some[1] + some[2] - some[0] if draw.random() < 0.7 else draw.randrange(max(numbers) + 2)
    return numbers | {new} if 0 <= new <= LARGEST and len(numbers) < MOST else numbers


def measured(numbers):
    """Return the sums and the differences that are not negative, as bits."""
    bits, top = sum(1 << x for x in numbers), max(numbers)
    turned = sum(1 << (top - x) for x in numbers)
    sums = differences = 0
    for x in numbers:
        sums |= bits << x
        differences |= turned << x
    return sums, differences >> top


def measured_with(before, numbers, sets):
    """Return what ``measured`` returns, which is known for the set before."""
    new = numbers - before
    if not new:
        return sets if numbers == before else measured(numbers)
    sums, differences = sets
    for x in new:
        sums |= sum(1 << (x + y) for y in numbers)
        differences |= sum(1 << abs(x - y) for y in numbers)
    return sums, differences


def value(top, sums, differences):
    count = 2 * differences.bit_count() - 1
    return 1 + math.log(count / sums.bit_count()) / math.log(2 * top + 1)


def few(kind, rng, size):
    """Return a few random small numbers."""
    count = int(rng.integers(3, 12))
    return sorted({0, *rng.integers(1, 6 * count, count).tolist()})


def simplex(kind, rng, size):
    """Return the numbers of the points with a small sum, in a base without carries or nearly so."""
    while True:
        dimension, most = int(rng.integers(2, 9)), int(rng.integers(1, 9))
        if math.comb(dimension + most, most) <= MOST:
            base = 2 * most + 1 - int(rng.integers(0, most + 1)) * int(rng.integers(0, 2))
            weights = [base**k for k in range(dimension)]
            if most * weights[-1] <= LARGEST:
                return sorted(set(points(weights, most)))


def points(weights, most):
    """Yield the sums of the weights, each taken any number of times, at most ``most`` together."""
    for places in combinations(range(most + len(weights)), len(weights)):
        at, found = -1, 0
        for weight, place in zip(weights, places, strict=True):
            found += weight * (place - at - 1)
            at = place
        yield found


def thin(kind, numbers, rng, size):
    """Take random numbers of a good set away."""
    kept = [x for x in numbers if rng.random() > min(0.9, size)]
    return sorted({0, max(numbers), *kept})


def cut(kind, numbers, rng, size):
    """Take the largest numbers of a good set away."""
    return numbers[: max(2, int(len(numbers) * (1 - min(0.9, size))))]


def multiply(kind, numbers, rng, size):
    """Return all sums of a number of a good set and a multiple of one of it or of a small set."""
    other = numbers if rng.random() < 0.5 else few(kind, rng, size)
    step = 2 * max(numbers) + 1 - int(rng.integers(0, max(numbers) + 1)) * int(rng.integers(0, 2))
    if step * max(other) + max(numbers) > LARGEST or len(numbers) * len(other) > MOST:
        return thin(kind, numbers, rng, size)
    return sorted({x + step * y for x in numbers for y in other})


STARTS = {"few": few, "simplex": simplex}
CHANGES = {"thin": thin, "cut": cut, "multiply": multiply}
