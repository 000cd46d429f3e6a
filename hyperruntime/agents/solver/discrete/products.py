"""Decompositions of the products of matrices: walks modulo 2, and signs for them."""

import random
from itertools import product as tuples

from discrete.flips import Flips
from discrete.kind import Kind
from discrete.signs import from_entries, modulo_2, to_entries, with_signs

WALK = 20_000
PART_WALK = 10_000
STEPS = 200  # between two looks at the clock
EVEN = 0.8  # how often an even side is halved for blocks
SIDES = ((0, 1), (1, 2), (0, 2))  # of A, B and AB: which of m, n and p are the rows and columns
SPARSE = 1e-5  # of a product: among equal ranks, fewer entries are better


class Product(Kind):
    """State: a list of terms ``[a, b, c]``, factors as in ``signs``."""

    size = 1.0

    def __init__(self, shape, signed):
        self.shape = shape
        self.signed = signed
        m, n, p = shape
        self.sizes = (m * n, n * p, m * p)
        self.parts = {}
        self.starts, self.changes = STARTS, CHANGES
        super().__init__()

    def merit(self, terms):
        return -len(terms) - SPARSE * sum(f.bit_count() for term in terms for f in term)

    def load(self, answer):
        return [[from_entries(part) for part in term] for term in answer]

    def answer(self, terms):
        return [list(map(to_entries, term, self.sizes)) for term in terms]

    def improved(self, start, clock, rng):
        """Return the end of a walk from a start: terms, and after how many flips it splits."""
        return self.walk(*start, WALK, clock, rng)

    def walk(self, terms, split_after, steps, clock, rng):
        """Return the last ones of the fewest terms of a walk that are right.

        Args:
            terms: the start.
            split_after: how many flips without a reduction lead to a split.
            steps: how many flips are tried, anew after each reduction.
            clock: of the search; None means that only the steps count.
            rng: numpy's random generator.
        """
        draw = random.Random(int(rng.integers(1 << 62)))
        best, flips = terms, Flips([list(map(modulo_2, term)) for term in terms])
        left, quiet, wait = steps, 0, 0
        while left > 0 and not (clock and clock.over()):
            for _ in range(STEPS):
                flips.flip(draw)
            left, quiet, wait = left - STEPS, quiet + STEPS, wait - 1
            count = len(flips.terms)
            if (count < len(best) and wait <= 0) or (count == len(best) and left <= 0):
                found = self.right(flips, draw)
                if found and count < len(best):
                    left, quiet = steps, 0
                wait = 0 if found else 2 * abs(wait) + 1
                best = found or best
            if quiet >= split_after:
                quiet = 0
                if len(flips.terms) > len(best):
                    flips = Flips([list(map(modulo_2, term)) for term in best])
                else:
                    flips.split(draw)
        return best

    def right(self, flips, draw):
        """Return the terms of a walk, with signs if the integers need them; None without any."""
        return with_signs(flips.terms, self.belongs, draw) if self.signed else flips.copy()

    def belongs(self, a, b, c):
        """Return whether three entries belong together in the product, 1 or 0."""
        _, n, p = self.shape
        return int(a % n == b // p and a // n == c // p and b % p == c % p)

    def schoolbook(self):
        m, n, p = self.shape
        return [
            [1 << (i * n + j), 1 << (j * p + k), 1 << (i * p + k)]
            for i, j, k in tuples(range(m), range(n), range(p))
        ]

    def part(self, shape, rng):
        """Return the shortest decomposition of a smaller product, after one more short walk."""
        kind, best = self.parts.get(shape) or (Product(shape, self.signed), None)
        best = kind.walk(best or kind.schoolbook(), PART_WALK // 4, PART_WALK, None, rng)
        self.parts[shape] = kind, best
        return best


def schoolbook(kind, rng, size):
    """Walk from the product by definition."""
    return kind.schoolbook(), WALK


def halves(kind, rng, size):
    """Walk from the decompositions of two products into which the matrices are cut."""
    side = int(rng.choice([k for k in range(3) if kind.shape[k] > 1]))
    cut = int(rng.integers(1, kind.shape[side]))
    terms = []
    for first, last in ((0, cut), (cut, kind.shape[side])):
        shape = [*kind.shape[:side], last - first, *kind.shape[side + 1 :]]
        at = [0, 0, 0]
        at[side] = first
        for term in kind.part(tuple(shape), rng):
            cells = [
                [(at[r] + i, at[c] + j, x) for i, j, x in matrix(shape, k, term[k])]
                for k, (r, c) in enumerate(SIDES)
            ]
            terms.append(composed(kind, cells))
    return terms, WALK


def blocks(kind, rng, size):
    """Walk from a product of blocks: each entry of a decomposition is a matrix itself."""
    outer = [
        2 if s % 2 == 0 and rng.random() < EVEN else int(rng.choice((1, s))) for s in kind.shape
    ]
    inner = [s // d for s, d in zip(kind.shape, outer, strict=True)]
    if 1 in (max(outer), max(inner)):
        return halves(kind, rng, size)
    terms = []
    for one, other in tuples(kind.part(tuple(outer), rng), kind.part(tuple(inner), rng)):
        cells = [
            [
                (i * inner[r] + u, j * inner[c] + v, x * y)
                for i, j, x in matrix(outer, k, one[k])
                for u, v, y in matrix(inner, k, other[k])
            ]
            for k, (r, c) in enumerate(SIDES)
        ]
        terms.append(composed(kind, cells))
    return terms, WALK


def matrix(shape, k, factor):
    """Return the rows, the columns and the entries of a factor: of A, B or AB."""
    rows, columns = (shape[side] for side in SIDES[k])
    entries = to_entries(factor, rows * columns)
    return [(*divmod(at, columns), entry) for at, entry in enumerate(entries) if entry]


def composed(kind, cells):
    """Return a term from the entries of its factors."""
    term = []
    for size, (_, c), here in zip(kind.sizes, SIDES, cells, strict=True):
        entries = [0] * size
        for i, j, entry in here:
            entries[i * kind.shape[c] + j] = entry
        term.append(from_entries(entries))
    return term


def onward(kind, terms, rng, size):
    """Walk on from a good decomposition."""
    return terms, WALK


def splitting(kind, terms, rng, size):
    """Walk on from a good decomposition, and split a term now and then."""
    return terms, max(STEPS, int(size * WALK / 8))


STARTS = {"schoolbook": schoolbook, "halves": halves, "blocks": blocks}
CHANGES = {"onward": onward, "splitting": splitting}
