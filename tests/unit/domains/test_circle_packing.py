"""The circle packing domain: valid and invalid packings, scores, reports and pictures."""

from __future__ import annotations

import json
import math
import struct
import xml.etree.ElementTree as ET
import zlib
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperdomain_math.circles import BEST_KNOWN, exact_circles, first_violation
from hyperdomain_math.packing import CirclePacking
from hyperdomain_math.picture import Circle
from hyperdomain_math.table import PROBLEMS
from hyperruntime.domain import Score, Task

Json = Any
DOMAIN = CirclePacking()
QUARTERS = [[0.25, 0.25, 0.25], [0.75, 0.25, 0.25], [0.25, 0.75, 0.25], [0.75, 0.75, 0.25]]

numbers = st.floats(min_value=-0.5, max_value=1.5, allow_nan=False)
packings = st.lists(
    st.tuples(numbers, numbers, st.floats(min_value=-0.1, max_value=0.6)), min_size=1, max_size=5
)
hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=25,
)


def task(n: int) -> Task:
    return Task(id=f"n{n}", inputs={"n": n})


def is_valid(circles: list[Circle]) -> bool:
    """Check validity by another method than the domain: integer arithmetic on a common grid."""
    grid = math.lcm(*(Fraction(value).denominator for circle in circles for value in circle))
    whole = [tuple(int(Fraction(value) * grid) for value in circle) for circle in circles]
    for i, (x, y, r) in enumerate(whole):
        if r < 0 or min(x, y, grid - x, grid - y) < r:
            return False
        for u, v, s in whole[:i]:
            if (x - u) ** 2 + (y - v) ** 2 < (r + s) ** 2:
                return False
    return True


def fault(circles: list[Circle]) -> str:
    return first_violation(exact_circles([list(one) for one in circles], len(circles)))


@given(packings)
def test_a_packing_is_valid_exactly_if_integer_arithmetic_agrees(
    circles: list[Circle],
) -> None:
    assert (fault(circles) == "") == is_valid(circles)


@given(
    st.floats(min_value=0.05, max_value=0.2),
    st.floats(min_value=0.0, max_value=2 * math.pi),
    st.integers(min_value=-4, max_value=4),
)
def test_the_limit_of_touching_circles_is_decided_exactly(
    r: float, angle: float, steps: int
) -> None:
    reach = 2 * r
    x, y = 0.5 + reach * math.cos(angle), 0.5 + reach * math.sin(angle)
    for _ in range(abs(steps)):
        x = math.nextafter(x, math.copysign(9, steps))
    circles = [(0.5, 0.5, r), (x, y, r)]
    assert (fault(circles) == "") == is_valid(circles)


@given(hostile, st.sampled_from([1, 2, 8]))
def test_scoring_never_raises_for_any_answer(prediction: Json, n: int) -> None:
    score = DOMAIN.score(task(n), prediction)
    assert math.isfinite(score.value)
    assert score.detail
    assert score.valid or score.value == 0.0
    json.dumps(dict(score.facts), allow_nan=False)
    DOMAIN.picture(task(n), prediction)
    DOMAIN.picture_png(task(n), prediction)


@pytest.mark.parametrize(
    ("circle", "problem"),
    [
        ([0.5, 0.5, math.nan], "not finite: circle 7[2] is nan"),
        ([math.inf, 0.5, 0.1], "not finite: circle 7[0] is inf"),
        ([0.5, -math.inf, 0.1], "not finite: circle 7[1] is -inf"),
        ([0.5, 0.5, 10**400], "too large: circle 7[2]"),
        ([0.5, 0.5, True], "circle 7[2] is a boolean"),
        (["half", 0.5, 0.1], "circle 7[0] is a text that is no decimal number"),
        ([0.5, 0.5], "2 items, not 3"),
        ([[0.5], 0.5, 0.1], "circle 7[0] is a list"),
        ({"x": 1}, "circle 7 is an object"),
        (None, "circle 7 is null"),
        ([0.5, 0.5, -1e-300], "negative radius"),
        ([0.5, 0.5, 0.6], "leaves the square"),
        ([0.3, 0.3, 0.05], "overlap"),
    ],
)
def test_an_invalid_circle_scores_zero_and_is_named(circle: Json, problem: str) -> None:
    others = [[0.1 + 0.2 * (i % 4), 0.1 + 0.2 * (i // 4), 0.05] for i in range(7)]
    score = DOMAIN.score(task(8), [*others, circle])
    assert (score.value, score.valid) == (0.0, False)
    assert problem in score.detail


def test_a_wrong_number_of_circles_is_invalid() -> None:
    for prediction in ([], QUARTERS, [QUARTERS[0]] * 9, {"circles": QUARTERS}, "four"):
        assert not DOMAIN.score(task(8), prediction).valid


def test_touching_circles_are_valid_and_the_smallest_overlap_is_not() -> None:
    assert first_violation(exact_circles(QUARTERS, 4)) == ""
    assert first_violation(exact_circles([["1/2", "0.5", "1/2"]], 1)) == ""
    longer = [*QUARTERS[:3], ["3/4", "3/4", f"{10**80 // 4 + 1}/1{'0' * 80}"]]
    assert "leaves the square" in first_violation(exact_circles(longer, 4))


def test_it_scores_and_draws_as_the_problem_of_the_domain_math_does() -> None:
    problem = PROBLEMS["circles-26"]
    answer = problem.baseline()
    assert DOMAIN.score(task(26), answer).value == problem.score(problem.verify(answer))
    one = DOMAIN.picture(task(26), answer)
    assert one is not None
    assert [line for line in problem.draw(answer) if line not in one] == []


def test_the_score_is_the_sum_of_radii_divided_by_the_best_known_sum() -> None:
    grid = [[0.1 + 0.2 * (i % 5), 0.1 + 0.2 * (i // 5), 0.1 - 1e-12] for i in range(25)] + [
        [0.2, 0.2, 0.0414]
    ]
    score = DOMAIN.score(task(26), grid)
    assert score.valid
    assert score.value == pytest.approx(2.5414 / float(BEST_KNOWN[26]))
    assert score.facts["sum_of_radii"] == pytest.approx(2.5414)


def test_tasks_are_in_order_contain_no_label_and_have_a_reference() -> None:
    for split in DOMAIN.splits:
        tasks = DOMAIN.tasks(split.name)
        assert DOMAIN.tasks(split.name, 1) == tasks[:1]
        assert len({one.id for one in tasks}) == len(tasks) > split.staged_samples
        for one in tasks:
            assert set(one.inputs) == {"n", "seed", "work", "time_limit_s"}
            assert one.inputs["n"] in BEST_KNOWN
            assert one.inputs["time_limit_s"] < DOMAIN.task_timeout_s
    assert [one.inputs["n"] for one in DOMAIN.tasks("val")] == [26, 32]
    sizes = [one.inputs["n"] for split in DOMAIN.splits for one in DOMAIN.tasks(split.name)]
    assert len(set(sizes)) == len(sizes), "no size is in two splits"
    with pytest.raises(KeyError):
        DOMAIN.tasks("other")
    with pytest.raises(ValueError, match="limit=-1"):
        DOMAIN.tasks("val", -1)


def test_a_report_has_the_mean_in_which_a_record_counts_in_full() -> None:
    record = Score(task_id="n08", value=1.2, valid=True)
    report = DOMAIN.report("train", [record, DOMAIN.score(task(8), None)])
    assert (report["score"], report["total"], report["valid"]) == (0.6, 2, 1)
    assert report["tasks"]["n08"]["score"] == 1.2
    assert DOMAIN.report("train", [])["score"] == 0.0
    json.dumps(report, allow_nan=False)


def test_the_svg_has_one_disc_per_circle() -> None:
    faulty = DOMAIN.picture(task(8), QUARTERS * 2)
    assert faulty is not None
    assert "overlap" in faulty
    fair = DOMAIN.picture(
        task(8), [[0.1 + 0.2 * (i % 4), 0.1 + 0.2 * (i // 4), 0.05] for i in range(8)]
    )
    assert fair is not None
    assert len([element for element in ET.fromstring(fair) if element.tag.endswith("circle")]) == 8
    assert DOMAIN.picture(task(8), None) is None


def test_the_png_decodes_to_the_expected_colours() -> None:
    image = DOMAIN.picture_png(task(4), QUARTERS)
    assert image is not None
    width, height, rows = decode(image)
    assert (width, height) == (512, 512)
    assert rows[0][:3] == bytes((255, 255, 255))
    assert rows[256][3 * 256 : 3 * 257] == bytes((246, 244, 238))  # the gap in the middle
    assert rows[136][3 * 136 : 3 * 137] != bytes((246, 244, 238))  # inside the upper left circle
    assert DOMAIN.picture_png(task(4), "junk") is None


def decode(image: bytes) -> tuple[int, int, list[bytes]]:
    """Decode a PNG file of unfiltered RGB rows and check every checksum."""
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    place, parts = 8, {}
    while place < len(image):
        (length,) = struct.unpack_from(">I", image, place)
        kind, data = image[place + 4 : place + 8], image[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", image, place + 8 + length) == (zlib.crc32(kind + data),)
        parts[kind] = data
        place += 12 + length
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    pixels, step = zlib.decompress(parts[b"IDAT"]), 3 * width + 1
    assert len(pixels) == step * height
    return width, height, [pixels[row * step + 1 : (row + 1) * step] for row in range(height)]
