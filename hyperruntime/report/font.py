"""A small stroke font: letters as lines, so that they look well at any size. Imports drawing only.

A glyph stands on a grid: x to the right from 0; y upward, 0 the base line, 4 the height of small letters, 6 of
digits, ``a`` and ``b`` one and two below the base line. A stroke is a word of points, two characters each; one that
begins with ``~`` is smoothed, and closed where it ends at its first point. Capitals have the form of small letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from hyperruntime.report.drawing import CAP_HEIGHT, Label, Point

_CAP_UNITS, _GAP_UNITS, _SPACE_UNITS = 6.0, 1.9, 2.0
_ROUNDS = 2
_BELOW = {"a": -1.0, "b": -2.0}
_BOWL = "~0030340400"
_MISSING = "0030360600"

_GLYPHS: dict[str, str] = {
    ".": "0000",
    ",": "100a",
    ":": "0000 0404",
    ";": "100a 1414",
    "-": "0333",
    "_": "0a4a",
    "+": "0343 2125",
    "=": "0242 0444",
    "/": "0036",
    "(": "~1604011a",
    ")": "~0614110a",
    "%": "0046 ~0424260604 ~2040422220",
    "#": "1016 3036 0242 0444",
    "'": "0604",
    "*": "2125 0442 0244",
    "0": "~0040460600",
    "1": "052620 0040",
    "2": "~0506464200 0040",
    "3": "~0506464313 ~1343400001",
    "4": "30360242",
    "5": "460603 ~030444400001",
    "6": "~0040440400 ~360602",
    "7": "064610",
    "8": "~0343460603 ~0040430300",
    "9": "~0242460602 ~444010",
    "a": f"{_BOWL} 3430",
    "b": f"0600 {_BOWL}",
    "c": "~333404003031",
    "d": f"3630 {_BOWL}",
    "e": "0232 ~323404003031",
    "f": "~361610 0434",
    "g": f"{_BOWL} ~343b0b",
    "h": "0600 ~02043430",
    "i": "0400 0606",
    "j": "~141b0b 1616",
    "k": "0600 3401 1230",
    "l": "0600",
    "m": "0400 ~02042420 ~22244440",
    "n": "0400 ~02043430",
    "o": _BOWL,
    "p": f"040b {_BOWL}",
    "q": f"343b {_BOWL}",
    "r": "0400 ~020424",
    "s": "~3334040232300001",
    "t": "~161030 0434",
    "u": "~04003032 3430",
    "v": "042044",
    "w": "0410233044",
    "x": "0430 0034",
    "y": "0420 441b",
    "z": "04340030",
}


def text_strokes(label: Label) -> Iterator[tuple[Point, ...]]:
    """Yield the strokes of a line of text, each as points in pixels of the sheet."""
    unit = label.size * CAP_HEIGHT / _CAP_UNITS
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor]
    left = label.x - shift * text_width(label.text, label.size)
    for letter in label.text:
        strokes, width = _glyph(letter)
        for stroke in strokes:
            yield tuple((left + x * unit, label.y - y * unit) for x, y in stroke)
        left += (width + _GAP_UNITS) * unit


def text_width(text: str, size: float) -> float:
    """Return how wide a line of text is, in pixels."""
    units = sum(_glyph(letter)[1] + _GAP_UNITS for letter in text) - (_GAP_UNITS if text else 0.0)
    return units * size * CAP_HEIGHT / _CAP_UNITS


@cache
def _glyph(letter: str) -> tuple[tuple[tuple[Point, ...], ...], float]:
    """Return a letter's strokes in units of the grid, and its width."""
    if letter.isspace():
        return (), _SPACE_UNITS
    words = _GLYPHS.get(letter.lower(), _MISSING).split()
    strokes = tuple(_stroke(word) for word in words)
    return strokes, max(x for stroke in strokes for x, _ in stroke)


def _stroke(word: str) -> tuple[Point, ...]:
    pairs = word.removeprefix("~")
    points = [(float(x), _BELOW.get(y) or float(y)) for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
    if word.startswith("~"):
        for _ in range(_ROUNDS):
            points = _rounded(points)
    return tuple(points)


def _rounded(points: list[Point]) -> list[Point]:
    """Cut the corners of a path; its ends stay where they are, or it stays closed.

    Source: G. Chaikin, An algorithm for high-speed curve generation, 1974: each side keeps its middle half.
    """
    closed = points[0] == points[-1]
    cut: list[Point] = [] if closed else [points[0]]
    for (x, y), (u, v) in pairwise(points):
        cut += [(0.75 * x + 0.25 * u, 0.75 * y + 0.25 * v), (0.25 * x + 0.75 * u, 0.25 * y + 0.75 * v)]
    return [*cut, cut[0] if closed else points[-1]]
