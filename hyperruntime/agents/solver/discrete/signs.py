"""Signs for a decomposition modulo 2, so that it is one over the integers.

An entry 1 becomes ``1 + 2 s``, which is 1 or -1. Modulo 4 a product of three entries is 1 plus
twice the sum of their ``s``. So the right signs satisfy linear equations modulo 2, the first step
of Hensel's lifting; that the sums are right, and not only modulo 4, is checked.
"""

from itertools import product

HALF = 32  # a factor has the bits of its ones, and above these bits those of its minus ones
LOW = (1 << HALF) - 1
TRIES = 3


def modulo_2(factor):
    return factor >> HALF | factor & LOW


def from_entries(entries):
    return sum(1 << (k + HALF * (entry < 0)) for k, entry in enumerate(entries) if entry)


def to_entries(factor, size):
    return [(factor >> k & 1) - (factor >> (k + HALF) & 1) for k in range(size)]


def bits(factor):
    found = []
    while factor:
        found.append((factor & -factor).bit_length() - 1)
        factor &= factor - 1
    return found


def with_signs(terms, is_one, draw):
    """Return the terms with signs; None if none were found.

    Args:
        terms: a decomposition modulo 2.
        is_one: says for the places of three entries whether their products must sum to 1, else 0.
        draw: random numbers.
    """
    numbers = {}
    sums = {}
    for t, term in enumerate(terms):
        places = [bits(factor) for factor in term]
        for k, here in enumerate(places):
            for place in here:
                numbers[t, k, place] = len(numbers)
        for triple in product(*places):
            unknowns = [numbers[t, k, place] for k, place in enumerate(triple)]
            sums.setdefault(triple, []).append(unknowns)
    solved = eliminated(sums, is_one)
    for _ in range(TRIES if solved is not None else 0):
        found = solution(solved, len(numbers), draw)
        if all(
            sum(1 - 2 * (sum(found[n] for n in unknowns) % 2) for unknowns in all_unknowns)
            == is_one(*triple)
            for triple, all_unknowns in sums.items()
        ):
            signed = [[0, 0, 0] for _ in terms]
            for (t, k, place), number in numbers.items():
                signed[t][k] |= 1 << (place + HALF * found[number])
            return signed
    return None


def eliminated(sums, is_one):
    """Return the equations by their highest unknowns; None if they have no solution.

    An equation is an integer: its bits are the unknowns, and bit 0 is the other side.
    """
    found = {}
    for key, triples in sums.items():
        row = (is_one(*key) - len(triples)) // 2 % 2
        for triple in triples:
            for number in triple:
                row ^= 2 << number
        while row > 1 and (other := found.get(row.bit_length())):
            row ^= other
        if row == 1:
            return None
        if row:
            found[row.bit_length()] = row
    return found


def solution(equations, count, draw):
    """Return the values of the unknowns; those that are free are random."""
    values = 1  # bit 0 is the other side of each equation
    for number in range(count):
        row = equations.get(number + 2)
        value = draw.getrandbits(1) if row is None else (row & values).bit_count() % 2
        values |= value << (number + 1)
    return [values >> (number + 1) & 1 for number in range(count)]
