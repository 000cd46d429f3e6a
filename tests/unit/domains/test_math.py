"""The domain ``math``: published constructions, perturbed ones, cheats, and certificates."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperdomain_math import Math
from hyperdomain_math.exact import RefusedError, convolve, log_ratio_below
from hyperdomain_math.judge import judge
from hyperdomain_math.picture import frame
from hyperdomain_math.table import PROBLEMS, verify
from hyperdomain_math.uncertainty import function
from hyperruntime.domain import Score, Task
from hyperruntime.errors import SpecError
from hyperruntime.loop.evaluation.evaluator import SplitResult, write_results
from hyperruntime.loop.evaluation.task_runner import Prediction
from tests.unit.domains.constructions import ARENA_21, CONSTRUCTIONS, NEARLY, rows

Json = Any
DOMAIN = Math()
PI = Fraction("3.14159265358979323846264338327950288419716939937510")


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_a_published_construction_reaches_the_record_exactly(name: str) -> None:
    problem = PROBLEMS[name]
    value = verify(name, CONSTRUCTIONS[name])
    assert value == Fraction(problem.record)
    assert (problem.score(value), problem.is_new(value)) == (1.0, False)


@pytest.mark.parametrize("name", NEARLY)
def test_a_published_construction_with_decimals_has_its_published_digits(name: str) -> None:
    answer, digits = NEARLY[name]
    problem = PROBLEMS[name]
    value = verify(name, answer)
    assert abs(value - Fraction(digits)) <= Fraction(1, 10 ** len(digits.partition(".")[2]))
    assert problem.score(value) == pytest.approx(1.0, abs=0.02)
    assert not problem.is_new(value)
    assert problem.score(value) <= 1.0


def test_known_values_of_step_functions_and_sets() -> None:
    assert verify("autocorrelation-1", [7, 7, 7]) == 2
    assert verify("autocorrelation-2", ["1/3"]) == Fraction(2, 3)
    assert verify("autocorrelation-3", [1, -0.5, 1]) == 6
    assert verify("overlap", [0.1] * 4) == Fraction(1, 2)
    conway = [0, 2, 3, 4, 7, 11, 12, 14]  # 26 sums, 25 differences
    found = verify("sums-differences", conway)
    assert float(found) == pytest.approx(1 + math.log(25 / 26) / math.log(29), abs=1e-15)


# Each function judges an answer in another way than the domain: None, or the value.


def circles_again(answer: Json) -> Fraction | None:
    side = 2**120  # of a grid with all floats that occur here
    exact = [[int(Fraction(x) * side) for x in circle] for circle in answer]
    for x, y, r in exact:
        if r < 0 or x - r < 0 or y - r < 0 or x + r > side or y + r > side:
            return None
    for (x, y, r), (u, v, s) in combinations(exact, 2):
        if (r + s) ** 2 - (x - u) ** 2 - (y - v) ** 2 > 0:
            return None
    return Fraction(sum(c[2] for c in exact), side)


def rectangle_again(answer: Json) -> Fraction | None:
    exact = [[Fraction(x) for x in circle] for circle in answer]
    width, height = (
        max(c[k] + c[2] for c in exact) - min(c[k] - c[2] for c in exact) for k in (0, 1)
    )
    if width + height > 2 or any(c[2] < 0 for c in exact):
        return None
    for (x, y, r), (u, v, s) in combinations(exact, 2):
        if (r + s) ** 2 - (x - u) ** 2 - (y - v) ** 2 > 0:
            return None
    return sum((c[2] for c in exact), Fraction(0))


def areas(answer: Json) -> list[Fraction]:
    exact = [[Fraction(x) for x in point] for point in answer]
    return [
        abs(a[0] * (b[1] - c[1]) + b[0] * (c[1] - a[1]) + c[0] * (a[1] - b[1]))
        for a, b, c in combinations(exact, 3)
    ]


def triangle_again(answer: Json) -> Fraction | None:
    inside = all(min(p) >= 0 and sum(map(Fraction, p)) <= 1 for p in answer)
    return min(areas(answer)) if inside and min(areas(answer)) else None


def convex_again(answer: Json) -> Fraction | None:
    """Add the triangles between a point and the edges: lines with all points on one side."""
    side = 2**120  # of a grid with all floats that occur here
    exact = [[int(Fraction(x) * side) for x in point] for point in answer]

    def area(a: list[int], b: list[int], c: list[int]) -> int:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    smallest = min(abs(area(a, b, c)) for a, b, c in combinations(exact, 3))
    edges = [(a, b) for a, b in permutations(exact, 2) if min(area(a, b, c) for c in exact) >= 0]
    hull = sum(area(a, b, exact[0]) for a, b in edges)
    return Fraction(smallest, hull) if smallest else None


def ratio_again(answer: Json) -> Fraction | None:
    squares = [
        sum((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(a, b, strict=True))
        for a, b in combinations(answer, 2)
    ]
    return Fraction(max(squares)) / min(squares) if min(squares) else None


def golomb_again(answer: Json) -> Fraction | None:
    differences = [a - b for a in answer for b in answer if a > b]
    full = len(differences) == len(answer) * (len(answer) - 1) // 2
    return (
        Fraction(max(answer) - min(answer))
        if full and len(set(differences)) == len(differences)
        else None
    )


def network_again(answer: Json) -> Fraction | None:
    for values in product((0, 1), repeat=7):
        line = list(values)
        for i, j in answer:
            if not 0 <= i < j < 7:
                return None
            line[i], line[j] = sorted((line[i], line[j]))
        if line != sorted(line):
            return None
    return Fraction(len(answer))


def cap_again(answer: Json) -> Fraction | None:
    if any(not 0 <= x <= 2 for point in answer for x in point):
        return None
    lines = (
        all((x + y + z) % 3 == 0 for x, y, z in zip(a, b, c, strict=True))
        for a, b, c in combinations(answer, 3)
    )
    distinct = len({tuple(point) for point in answer}) == len(answer)
    return Fraction(len(answer)) if distinct and not any(lines) else None


def kissing_again(answer: Json) -> Fraction | None:
    longest = max(math.dist(x, [0] * len(x)) ** 2 for x in answer)
    gaps = (
        sum((p - q) ** 2 for p, q in zip(x, y, strict=True)) for x, y in combinations(answer, 2)
    )
    zero = any(not any(x) for x in answer)
    return Fraction(len(answer)) if not zero and min(gaps) >= round(longest) else None


def product_again(answer: Json) -> Fraction | None:
    """Multiply matrices that have one entry each."""
    return products_again(answer, 0)


def product_modulo_2(answer: Json) -> Fraction | None:
    return products_again(answer, 2)


def products_again(answer: Json, modulus: int) -> Fraction | None:
    for left, right in product(range(4), repeat=2):
        found = [0] * 4
        for a, b, c in answer:
            found = [s + a[left] * b[right] * x for s, x in zip(found, c, strict=True)]
        wanted = [0] * 4
        if left % 2 == right // 2:
            wanted[left // 2 * 2 + right % 2] = 1
        if any((x - y) % modulus if modulus else x - y for x, y in zip(found, wanted, strict=True)):
            return None
    return Fraction(len(answer))


def overlap_again(answer: Json) -> Fraction | None:
    exact = [Fraction(x) for x in answer]
    if min(exact) < 0 or not any(exact):
        return None
    count = len(exact)
    f = [x * count / 2 / sum(exact) for x in exact]
    if max(f) > 1:
        return None
    shifts = range(-count + 1, count)
    return max(
        sum(f[i] * (1 - f[i + k]) for i in range(count) if 0 <= i + k < count) for k in shifts
    ) * Fraction(2, count)


def convolved(answer: Json) -> list[Fraction]:
    exact = [Fraction(x) for x in answer]
    count = len(exact)
    return [
        sum((exact[i] * exact[k - i] for i in range(count) if 0 <= k - i < count), Fraction(0))
        for k in range(2 * count - 1)
    ]


def convolution_again(answer: Json) -> Fraction | None:
    if min(answer) < 0 or not any(answer):
        return None
    return 2 * len(answer) * max(convolved(answer)) / sum(map(Fraction, answer)) ** 2


def signed_again(answer: Json) -> Fraction | None:
    total = sum(map(Fraction, answer))
    largest = max(abs(x) for x in convolved(answer))
    return 2 * len(answer) * largest / total**2 if total else None


def norms_again(answer: Json) -> Fraction | None:
    """Integrate the square of each linear part by Simpson's rule, which is exact for it."""
    if min(answer) < 0 or not any(answer):
        return None
    nodes = [Fraction(0), *convolved(answer), Fraction(0)]
    square = sum((p * p + (p + q) ** 2 + q * q) / 6 for p, q in pairwise(nodes))
    return Fraction(square) / sum(map(Fraction, answer)) ** 2 / max(nodes)


RANDOM_STEPS = [random.Random(7).random() for _ in range(12)]
JUDGES: dict[str, tuple[Json, Callable[[Json], Fraction | None]]] = {
    "circles-32": (NEARLY["circles-32"][0], circles_again),
    "heilbronn-triangle-11": (NEARLY["heilbronn-triangle-11"][0], triangle_again),
    "ratio-16": (NEARLY["ratio-16"][0], ratio_again),
    "golomb-10": ([2 * mark for mark in CONSTRUCTIONS["golomb-10"]], golomb_again),
    "sorting-7": (CONSTRUCTIONS["sorting-7"], network_again),
    "capset-4": (CONSTRUCTIONS["capset-4"], cap_again),
    "kissing-4": (CONSTRUCTIONS["kissing-4"], kissing_again),
    "matmul-222": (CONSTRUCTIONS["matmul-222"], product_again),
    "overlap": (RANDOM_STEPS, overlap_again),
    "autocorrelation-1": (RANDOM_STEPS, convolution_again),
    "autocorrelation-2": (RANDOM_STEPS, norms_again),
    "autocorrelation-3": ([x - 0.3 for x in RANDOM_STEPS], signed_again),
    "rectangle-21": (NEARLY["rectangle-21"][0], rectangle_again),
    "heilbronn-convex-13": (NEARLY["heilbronn-convex-13"][0], convex_again),
    "matmul-222-mod2": (CONSTRUCTIONS["matmul-222"], product_modulo_2),
}
ALWAYS_VALID = {
    "ratio-16",
    "overlap",
    "heilbronn-convex-13",
    *(f"autocorrelation-{k}" for k in "123"),
}


def perturbed(answer: Json, draw: random.Random) -> Json:
    """Return a copy with one number changed, floats by a factor near 1; or with one item left out,
    twice, or exchanged.
    """
    copy = json.loads(json.dumps(answer))
    place = copy
    while isinstance(place[0], list):
        if draw.random() < 0.1:
            return reordered(copy, place, draw)
        place = draw.choice(place)
    k = draw.randrange(len(place))
    if isinstance(place[k], int):
        place[k] += draw.choice((-2, -1, 1, 2))
    else:
        place[k] *= 1 + draw.choice((-1, 1)) * 10.0 ** -draw.randint(1, 17)
    return copy


def reordered(copy: Json, place: Json, draw: random.Random) -> Json:
    i, j = draw.randrange(len(place)), draw.randrange(len(place))
    place[i], place[j] = place[j], place[i]
    return copy


@pytest.mark.parametrize("name", JUDGES)
def test_perturbed_answers_are_judged_as_by_other_exact_arithmetic(name: str) -> None:
    answer, judged_again = JUDGES[name]
    draw = random.Random(name)
    seen = set()
    for _ in range(100):
        changed = perturbed(answer, draw)
        try:
            value: Fraction | None = verify(name, changed)
        except RefusedError:
            value = None
        assert value == judged_again(changed), changed
        seen.add(value is None)
    assert seen == {True, False} or name in ALWAYS_VALID


def evaluated(p: list[Fraction], t: Fraction) -> Fraction:
    found = Fraction(0)
    for c in reversed(p):
        found = found * t + c
    return found


def laguerre(n: int) -> list[Fraction]:
    """Return the Laguerre polynomial of the parameter -1/2, a multiple of ``H_(2n)(sqrt(t))``."""
    found = [Fraction(1)]
    for k in range(n):
        found.append(found[-1] * Fraction(k - n, 1) / ((k + Fraction(1, 2)) * (k + 1)))
    return found


def roots_above(p: list[Fraction], t: Fraction) -> int:
    """Return the number of different roots above ``t``, by Sturm's theorem."""
    chain = [p, [k * c for k, c in enumerate(p)][1:]]
    while any(chain[-1]):
        rest, by = list(chain[-2]), chain[-1]
        while len(rest) >= len(by):
            factor = rest[-1] / by[-1]
            for k, c in enumerate(by):
                rest[len(rest) - len(by) + k] -= factor * c
            rest.pop()
        while rest and not rest[-1]:
            rest.pop()
        chain.append([-c for c in rest])
    here = [evaluated(each, t) > 0 for each in chain[:-1] if evaluated(each, t)]
    far = [each[-1] > 0 for each in chain[:-1]]
    changes = [sum(a != b for a, b in pairwise(signs)) for signs in (here, far)]
    return changes[0] - changes[1]


def test_the_last_sign_change_of_the_uncertainty_function_is_where_sturms_theorem_has_it() -> None:
    draw = random.Random(3)
    for number in range(20):
        roots = [Fraction(x, 10) for x in draw.sample(range(21, 90), number % 4)]
        p = [Fraction(c) for c in function(roots)]
        for root in roots:
            assert evaluated(p, root) == 0
            assert evaluated([k * c for k, c in enumerate(p)][1:], root) == 0
        assert p[0] == 0 < p[-1]
        rest = list(p)
        for n in reversed(range(len(p))):  # a combination of those of even degree only
            basis = laguerre(n)
            factor = rest[n] / basis[n]
            assert not factor or n % 2 == 0
            rest = [x - factor * (basis[k] if k <= n else 0) for k, x in enumerate(rest)]
        assert not any(rest)
        end = 2 * PI * verify("uncertainty", [str(root) for root in roots])
        above = sum(root > end for root in roots)
        assert roots_above(p, end) == above
        assert roots_above(p, end - Fraction(1, 10**28)) == above + 1
        assert evaluated(p, end - Fraction(1, 10**28)) < 0


@given(st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=9), st.data())
def test_convolutions_are_exact(left: list[int], data: st.DataObject) -> None:
    right = data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=9))
    found = [0] * (len(left) + len(right) - 1)
    for (i, a), (j, b) in product(enumerate(left), enumerate(right)):
        found[i + j] += a * b
    assert convolve(left, right) == found


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(2, 10**9))
def test_the_bound_of_a_quotient_of_logarithms_is_below_it_and_near(
    upper: int, lower: int, base: int
) -> None:
    bound = log_ratio_below(upper, lower, base)
    assert float(bound) == pytest.approx(
        math.log(upper / lower) / math.log(base), rel=1e-9, abs=1e-12
    )
    near = bound.limit_denominator(12)  # base^(p/q) <= upper/lower, in integers
    if near <= bound:
        p, q = near.numerator, near.denominator
        assert base ** max(p, 0) * lower**q <= upper**q * base ** max(-p, 0)


def circles(change: float | str) -> Json:
    """Return 26 circles in a grid that touch; one is larger by ``change``."""
    grid = [
        [str(Fraction(2 * (i % 6) + 1, 12)), str(Fraction(2 * (i // 6) + 1, 12)), "1/12"]
        for i in range(26)
    ]
    grid[7][2] = str(Fraction(1, 12) + Fraction(change))
    return grid


def huge(digits: int) -> Json:
    return [[0, 10**digits]]


KISS = CONSTRUCTIONS["kissing-4"]
CHEATS: dict[str, tuple[str, Json, str]] = {
    "an overlap of 1e-7": ("circles-26", circles("1e-7"), "overlap by 1e-07"),
    "an overlap of radii that no float can hold": (
        "circles-26",
        [["1/2", "1/2", f"1/{10**390}"]] * 26,
        "circles 0 and 1 overlap by less than 1e-300",
    ),
    "an overlap of 1e-60": ("circles-26", circles("1e-60"), "overlap by"),
    "a published answer with overlaps": ("rectangle-21", rows(ARENA_21, 3), "exceed 2 by 4.2e-14"),
    "a point outside by 1e-30": (
        "heilbronn-triangle-11",
        [["1e-30", 1], *NEARLY["heilbronn-triangle-11"][0][1:]],
        "point 0 lies outside",
    ),
    "three points on a line": ("heilbronn-convex-13", [[i, i] for i in range(13)], "on one line"),
    "NaN": ("golomb-10", [math.nan] * 10, "not finite"),
    "NaN as a radius": ("circles-26", [[0.5, 0.5, math.nan]] * 26, "not finite"),
    "infinity": ("overlap", [1.0, math.inf], "not finite"),
    "a huge integer": ("kissing-4", huge(401), "too large"),
    "an integer that Python does not print": ("kissing-4", huge(9999), "too large"),
    "a huge exponent": ("overlap", ["1e999999999"], "more than 400 digits"),
    "a huge answer": ("overlap", "1" * (1 << 23), "too large"),
    "a deep answer": ("overlap", json.loads("[" * 900 + "]" * 900), "a list, not a number"),
    "a pickle": ("matmul-222", pickle.dumps([1]), "not JSON"),
    "a pickle as a text": ("matmul-222", b64encode(pickle.dumps([1])).decode(), "a text"),
    "code": ("matmul-222", "__import__('os').system('true')", "a text"),
    "halves over the integers": (
        "matmul-222",
        [[[0.5 * x for x in a], [2 * x for x in b], c] for a, b, c in CONSTRUCTIONS["matmul-222"]],
        "not an integer",
    ),
    "a float with an integral value": ("golomb-10", [*range(9), 55.0], "not an integer"),
    "a boolean": ("golomb-10", [*range(9), True], "a boolean, not an integer"),
    "a network that fails for one input": (
        "sorting-16",
        CONSTRUCTIONS["sorting-16"][:-1],
        "is not sorted",
    ),
    "a comparator of a channel with itself": ("sorting-4", [[0, 0]], "0 <= i < j < 4"),
    "a vector twice": ("kissing-4", [*KISS, KISS[0]], "nearer"),
    "a vector that is zero": ("kissing-4", [*KISS, [0, 0, 0, 0]], "vector 24 is zero"),
    "a longer vector between others": ("kissing-4", [*KISS, [2, 1, 0, 0]], "nearer"),
    "a point twice": ("capset-3", [[0, 0, 0], [0, 0, 0]], "occurs twice"),
    "a coordinate that is equal modulo 3": ("capset-3", [[0, 0, 0], [3, 0, 0]], "not 0, 1 or 2"),
    "a mark twice": ("golomb-10", [0] * 10, "occurs twice"),
    "a negative height": ("autocorrelation-1", [1, "-1e-300"], "negative"),
    "an integral of zero": ("autocorrelation-3", [1, -1], "integral of the function is zero"),
    "a height above 1": ("overlap", [1, 0, 0], "above 1"),
    "a product that is right modulo 2": (
        "matmul-222",
        [[a, b, [abs(x) for x in c]] for a, b, c in CONSTRUCTIONS["matmul-222"]],
        "are wrong",
    ),
    "a double root twice": ("uncertainty", [4, "4.0"], "occurs twice"),
    "a double root at 0": ("uncertainty", [0], "is not positive"),
    "too many double roots": ("uncertainty", list(range(1, 18)), "too large"),
    "a set without 0": ("sums-differences", [1, 2], "does not contain 0"),
    "no answer": ("sums-differences", None, "null, not a list"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_refused_by_name(cheat: str) -> None:
    name, answer, reason = CHEATS[cheat]
    score = DOMAIN.score(Task(id=name, inputs={}), answer)
    assert (score.value, score.valid) == (0.0, False)
    assert reason in score.detail
    assert DOMAIN.certificate(score, answer) is None


def test_a_check_that_takes_too_long_is_ended() -> None:
    heights = [f"{i}.{'7' * 300}" for i in range(20_000)]
    verdict = judge("autocorrelation-2", heights, cpu_s=1)
    assert verdict.refused == "too large: the check took more than 1 CPU s"


def test_a_record_with_decimals_is_passed_by_more_than_its_last_digit() -> None:
    problem = PROBLEMS["ratio-16"]
    assert not problem.is_new(Fraction("12.889229"))
    assert problem.score(Fraction("12.889229")) == 1.0
    assert problem.is_new(Fraction("12.8892289"))
    assert problem.score(Fraction("12.8892289")) > 1.0
    assert PROBLEMS["kissing-11"].is_new(Fraction(605))
    assert not PROBLEMS["kissing-11"].is_new(Fraction(604))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_baseline_is_valid_and_has_a_picture(name: str) -> None:
    problem = PROBLEMS[name]
    answer = problem.baseline()
    assert 0.05 < problem.score(problem.verify(answer)) <= 1.0
    assert len(ET.fromstring(frame(problem.draw(answer)))) > 4
    assert problem.source
    assert Math(name).tasks("train")[0].inputs["answer"] == problem.form


def test_a_picture_is_drawn_of_valid_answers_only() -> None:
    task = Task(id="golomb-10", inputs={})
    picture = DOMAIN.picture(task, CONSTRUCTIONS["golomb-10"])
    assert picture is not None
    assert "golomb-10: length 55, the record is 55" in picture
    assert DOMAIN.picture(task, [1]) is None


def test_the_option_chooses_a_problem() -> None:
    assert [task.id for task in Math("overlap").tasks("train")] == ["overlap"]
    assert {task.id for task in DOMAIN.tasks("train")} == set(PROBLEMS)
    with pytest.raises(SpecError, match="did you mean 'golomb-16'"):
        Math("golmb-16")


def test_a_new_record_is_kept_with_a_certificate_that_is_valid_alone(tmp_path: Path) -> None:
    answer = CONSTRUCTIONS["golomb-16"]
    facts = {"value": "177", "record": "180", "is_record": True}  # as if the record were longer
    scores = (
        Score(task_id="golomb-16", value=1.02, valid=True, facts=facts),
        Score(task_id="golomb-18", value=1.0, valid=True, facts={**facts, "is_record": False}),
    )
    said = tuple(Prediction(task_id=score.task_id, value=answer) for score in scores)
    result = SplitResult(predictions=said, scores=scores, total=2, mean=1.01)
    write_results(tmp_path, DOMAIN, "train", result)
    (path,) = tmp_path.glob("math_eval/certificate_*.json")
    certificate = json.loads(path.read_text())
    assert (certificate["domain"], certificate["answer"]) == ("math", answer)
    assert DOMAIN.certify(certificate).valid
    for change in (
        {"value": "176"},
        {"value": 177},
        {"answer": answer[:-1]},
        {"problem": "golomb-18"},
    ):
        assert not DOMAIN.certify({**certificate, **change}).valid
    with pytest.raises(SpecError, match="problem=None"):
        DOMAIN.certify({})


def test_the_page_lists_every_problem_with_its_record() -> None:
    page = (Path(__file__).parents[3] / "docs/problems.md").read_text()
    missing = [
        name
        for name, problem in PROBLEMS.items()
        if not re.search(rf"\| `{re.escape(name)}` \| {re.escape(problem.record)} \|", page)
    ]
    assert missing == []
