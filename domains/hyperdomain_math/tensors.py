"""Decompositions of the tensors of matrix products, over the integers and modulo 2.

``A`` has ``m`` x ``n`` entries, ``B`` has ``n`` x ``p``. A decomposition of rank ``r`` computes
``AB`` with ``r`` products. Each product multiplies a sum of entries of ``A`` by a sum of entries of
``B``, and is added to entries of ``AB``. It is right if, for each entry of ``A``, of ``B`` and of
``AB``, the sum of the products of the three coefficients is 1 where the entries belong together
(``A[i][j] B[j][k]`` in ``AB[i][k]``) and 0 elsewhere.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

from hyperdomain_math.exact import RefusedError, integer, items
from hyperdomain_math.picture import grid
from hyperdomain_math.problem import Problem

Shape = tuple[int, int, int]
Term = tuple[list[int], ...]
_FAWZI = "Fawzi et al. 2022 (AlphaTensor), doi:10.1038/s41586-022-05172-4"
_TABLE = f"{_FAWZI}; github.com/dronperminov/FastMatrixMultiplication"
_STRASSEN = "Strassen 1969; proven by Winograd 1971"
_LADERMAN = "Laderman 1976, doi:10.1090/S0002-9904-1976-13988-2"
RECORDS: dict[Shape, tuple[int, str]] = {
    (2, 2, 2): (7, _STRASSEN),
    (2, 2, 3): (11, _TABLE),
    (2, 2, 4): (14, _TABLE),
    (2, 3, 3): (15, _TABLE),
    (2, 3, 4): (20, _TABLE),
    (2, 4, 4): (26, _TABLE),
    (3, 3, 3): (23, _LADERMAN),
    (3, 3, 4): (29, _TABLE),
    (3, 4, 4): (38, _TABLE),
    (4, 4, 4): (49, f"{_STRASSEN}, used twice; 48 needs halves or complex numbers"),
}
RECORDS_MODULO_2: dict[Shape, tuple[int, str]] = {
    (2, 2, 2): (7, _STRASSEN),
    (3, 3, 3): (23, _LADERMAN),
    (4, 4, 4): (47, _FAWZI),
}


def decomposition(answer: Any, shape: Shape, modulus: int) -> Fraction:  # noqa: ANN401 - any JSON value
    """Return the rank of a decomposition.

    Args:
        answer: a list of ``[a, b, c]``, the coefficients of the entries of A, B and AB by rows.
        shape: ``m``, ``n`` and ``p``.
        modulus: 2, or 0 for the integers.

    Raises:
        RefusedError: it does not compute the product of matrices.
    """
    m, n, p = shape
    terms = _terms(answer, shape)
    for i, j in product(range(m), range(n)):
        used = [term for term in terms if term[0][i * n + j]]
        for l, k in product(range(n), range(p)):  # noqa: E741 - B[l][k]
            sums = [0] * (m * p)
            for a, b, c in used:
                if factor := a[i * n + j] * b[l * p + k]:
                    sums = [s + factor * x for s, x in zip(sums, c, strict=True)]
            sums = [s % modulus for s in sums] if modulus else sums
            wanted = [0] * (m * p)
            wanted[i * p + k] = int(j == l)
            if sums != wanted:
                raise RefusedError(f"the terms with A[{i}][{j}] B[{l}][{k}] are wrong")
    return Fraction(len(terms))


def _terms(answer: Any, shape: Shape) -> list[Term]:  # noqa: ANN401
    m, n, p = shape
    found = []
    for k, term in enumerate(items(answer, "the answer", most=m * n * p)):
        parts = zip("abc", items(term, f"term {k}", 3), (m * n, n * p, m * p), strict=True)
        found.append(
            tuple(
                [integer(x, f"term {k}, {name}") for x in items(part, f"term {k}, {name}", size)]
                for name, part, size in parts
            )
        )
    return found


def _schoolbook(shape: Shape) -> list[list[list[int]]]:
    """Return one product for each entry of A and each entry of B in the row that it meets."""
    m, n, p = shape
    return [
        [_unit(i * n + j, m * n), _unit(j * p + k, n * p), _unit(i * p + k, m * p)]
        for i, j, k in product(range(m), range(n), range(p))
    ]


def _unit(place: int, size: int) -> list[int]:
    return [int(i == place) for i in range(size)]


def _draw(shape: Shape, answer: Any) -> list[str]:  # noqa: ANN401
    rows = [[x for part in term for x in part] for term in _terms(answer, shape)]
    cells = [(x, y) for y, row in enumerate(rows) for x, entry in enumerate(row) if entry]
    return grid(cells, len(rows[0]), len(rows))


def _problem(shape: Shape, record: int, source: str, modulus: int) -> Problem:
    m, n, p = shape
    where = "modulo 2" if modulus else "over the integers"
    return Problem(
        name=f"matmul-{m}{n}{p}" + ("-mod2" if modulus else ""),
        text=f"Multiply a matrix A of {m} x {n} entries by a matrix B of {n} x {p} entries, whose "
        "entries need not commute, with few products of two entries. Each product multiplies a sum "
        "of entries of A by a sum of entries of B, with integer coefficients, and is added with "
        f"integer coefficients to entries of AB. The result must be exact {where}. The value is the "
        "number of products.",
        form=f"a list of products [a, b, c]: a has the {m * n} coefficients of A[0][0], A[0][1], ..., "
        f"b the {n * p} of B and c the {m * p} of AB, all integers, row by row",
        goal="minimise",
        value_name="number of products",
        record=str(record),
        source=source,
        verify=partial(decomposition, shape=shape, modulus=modulus),
        baseline=partial(_schoolbook, shape),
        draw=partial(_draw, shape),
    )


PROBLEMS = tuple(
    _problem(shape, record, source, modulus)
    for modulus, records in ((0, RECORDS), (2, RECORDS_MODULO_2))
    for shape, (record, source) in records.items()
)
