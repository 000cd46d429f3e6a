"""Read our own exercises: each is a statement, a stub and calls with known results."""

from __future__ import annotations

import json
from importlib import resources
from importlib.resources.abc import Traversable

from hyperdomain_polyglot.cases import Cases
from hyperdomain_polyglot.exercise import Exercise

FOLDER = "exercises"
_TRAIN = (
    "column_name", "merge_spans", "first_fault", "fold_ranges", "fill_lines", "build_order", "stack_machine",
    "inward_spiral",
)  # fmt: skip
_VAL = ("read_duration", "fewest_coins", "fits_pattern", "tally_votes")


def read_shipped() -> dict[str, dict[str, Exercise]]:
    """Return the exercises of each split, by name."""
    root = resources.files("hyperdomain_polyglot") / FOLDER
    return {
        split: {name: _read(root / name, name) for name in names} for split, names in (("train", _TRAIN), ("val", _VAL))
    }


def _read(folder: Traversable, name: str) -> Exercise:
    def text(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    return Exercise(
        language="python",
        statement=text("statement.md"),
        files={f"{name}.py": text(f"{name}.py")},
        tests=Cases(name, tuple(json.loads(text("cases.json")))),
    )
