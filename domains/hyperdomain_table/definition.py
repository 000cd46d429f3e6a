"""The definition of a data set and its TOML file.

::

    name = "paper_review"
    description = "is a paper accepted?"
    inputs = ["paper_text"]         # the columns that agents see
    label = "outcome"               # the column that they do not
    id = "question_id"              # default: the column "id" if it exists, else the row's number
    ordered = ["reject", "accept"]  # if the labels have an order: the report has a mean error
    points = [0, 7]                 # if they are worth something else than 0, 1, 2 ...
    question = "Is it accepted?"    # if agents should get one beside the columns
    [names]
    paper_text = "paper"            # if agents should see another name of a column
    [splits.train]
    file = "train.csv"              # relative to this file; .csv, or .jsonl
    staged_samples = 10
    [splits.val]
    file = "val.csv"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import SPLITS, Split
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_toml
from hyperruntime.option_fields import ABOVE_ZERO, AtLeast
from hyperruntime.settings.reader import check_known, read

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIXES = (".csv", ".jsonl")
_SAMPLE = Path(__file__).parent / "sample" / "tickets.toml"


def _named(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise SpecError(attribute.name, value, "letters, digits, '.', '_' and '-', at most 64")


def _once(instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not all(value) or len(set(value)) != len(value):
        raise SpecError(attribute.name, value, "a list of texts, each once")


def _data_file(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or Path(value).suffix not in _SUFFIXES:
        raise SpecError(attribute.name, value, f"the path of a {' or '.join(_SUFFIXES)} file")


@attrs.frozen(kw_only=True)
class SplitTable:
    """A table ``[splits.NAME]``: its file, and the fields of a :class:`~hyperruntime.Split`."""

    file: str = attrs.field(validator=_data_file)
    staged_samples: int = attrs.field(default=0, validator=AtLeast(0))
    staged_threshold: float = 0.0
    staged_inclusive: bool = False


@attrs.frozen(kw_only=True)
class Definition:
    """A data set.

    Attributes:
        name: the name of the domain, also in results.
        splits: the file of each split, and its first stage.
        inputs: the columns that agents see; empty means all columns except the id and the label.
        label: the column of the labels, which agents do not see.
        id: the column of the ids; None means ``id`` if it exists, else the row's number.
        ordered: the labels in their order; empty if they have none.
        points: what each of ``ordered`` is worth; empty for 0, 1, 2 and so on.
        names: the names of columns as agents see them, if they differ.
        question: a text that agents get with every row; "" for none.
        hidden: columns that agents do not see and that the domain needs beside the label.
        description: one line for ``hyperrun domains``.
        image: the image recipe of the containers.
        agent: the agent template.
        task_timeout_s: the deadline of one row, in seconds.
    """

    name: str = attrs.field(validator=_named)
    splits: Mapping[str, SplitTable]
    inputs: tuple[str, ...] = attrs.field(default=(), validator=_once)
    label: str = "label"
    id: str | None = None
    ordered: tuple[str, ...] = attrs.field(default=(), validator=_once)
    points: tuple[float, ...] = ()
    names: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    question: str = ""
    hidden: tuple[str, ...] = attrs.field(default=(), validator=_once)
    description: str = "a table of questions with known answers"
    image: str = "base"
    agent: str = "llm"
    task_timeout_s: float = attrs.field(default=600.0, validator=ABOVE_ZERO)

    def __attrs_post_init__(self) -> None:
        """Check that agents cannot see the label, that an order has two labels or more, and the
        names of the splits.

        Raises:
            SpecError: a field is invalid.
        """
        check_known(self.splits, SPLITS, "splits")
        if SPLITS[0] not in self.splits:
            raise SpecError("splits", tuple(self.splits), f"[splits.{SPLITS[0]}] among them")
        if secret := {self.label, *self.hidden} & set(self.inputs):
            raise SpecError("inputs", self.inputs, f"columns without {', '.join(sorted(secret))}")
        if self.label == self.id:
            raise SpecError("id", self.id, "another column than the label: agents see ids")
        if len(self.ordered) == 1:
            raise SpecError("ordered", self.ordered, "at least two labels, or none")
        if self.points and (
            len(self.points) != len(self.ordered) or list(self.points) != sorted(set(self.points))
        ):
            raise SpecError("points", self.points, "one for each of ordered, from low to high")

    @property
    def files(self) -> dict[Split, Path]:
        """The path of the file of each split, in the order of ``SPLITS``."""
        return {
            Split(
                name=name,
                staged_samples=one.staged_samples,
                staged_threshold=one.staged_threshold,
                staged_inclusive=one.staged_inclusive,
            ): Path(one.file)
            for name in SPLITS
            if (one := self.splits.get(name)) is not None
        }


def load_definition(source: str | None, folder: Path | None = None) -> Definition:
    """Return the definition in a TOML file, or the default definition of a table.

    Args:
        source: the path of a definition or of a table; None means the sample.
        folder: the directory of a definition's tables; None means that of the definition.

    Raises:
        SpecError: the definition is invalid or cannot be read.
    """
    path = _SAMPLE if source is None else Path(source).absolute()
    if path.suffix in _SUFFIXES:
        return Definition(
            name=re.sub(r"[^A-Za-z0-9._-]", "_", path.stem),
            splits={SPLITS[0]: SplitTable(file=str(path))},
        )
    try:
        value = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(
            "table", str(path), f"a readable .toml, .csv or .jsonl file ({error})"
        ) from error
    made = read(Definition, {"name": path.stem, **value}, path=f"{path}: ")
    if not made.inputs:
        raise SpecError(f"{path}: inputs", value.get("inputs"), "the columns that agents may see")
    placed = {
        name: attrs.evolve(one, file=str((folder or path.parent) / one.file))
        for name, one in made.splits.items()
    }
    return attrs.evolve(made, splits=placed)
