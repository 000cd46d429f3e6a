"""The definition of a data set and its TOML file.

::

    name = "paper_review"
    description = "is a paper accepted?"
    inputs = ["paper_text"]         # the columns that agents see
    label = "outcome"               # the column that they do not
    id = "question_id"              # default: the column "id" if it exists, else the row's number
    ordered = ["reject", "accept"]  # if the labels have an order: the report has a mean error
    [splits.train]
    file = "train.csv"              # relative to this file; .csv, or .jsonl
    staged_samples = 10
    [splits.val]
    file = "val.csv"
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.domain import SPLITS, Split
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_toml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIXES = (".csv", ".jsonl")
_KNOWN = (
    "name",
    "description",
    "inputs",
    "label",
    "id",
    "ordered",
    "image",
    "agent",
    "task_timeout_s",
    "splits",
)
_KNOWN_OF_SPLIT = ("file", "staged_samples", "staged_threshold", "staged_inclusive")
_SAMPLE = Path(__file__).parent / "sample" / "tickets.toml"


def _texts(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any TOML value
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _named(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise SpecError(attribute.name, value, "letters, digits, '.', '_' and '-', at most 64")


def _all_text(instance: object, attribute: attrs.Attribute[Any], value: tuple[object, ...]) -> None:
    if not all(isinstance(item, str) and item for item in value) or len(set(value)) != len(value):
        raise SpecError(attribute.name, value, "a list of texts, each once")


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 < value < math.inf:
        raise SpecError(attribute.name, value, "seconds above zero")


_TEXT = attrs.validators.instance_of(str)


@attrs.frozen(kw_only=True)
class Definition:
    """A data set.

    Attributes:
        name: the name of the domain, also in results.
        files: the path of the file of each split, in the order of ``SPLITS``.
        inputs: the columns that agents see; empty means all columns except the id and the label.
        label: the column of the labels, which agents do not see.
        id: the column of the ids; None means ``id`` if it exists, else the row's number.
        ordered: the labels in their order; empty if they have none.
        description: one line for ``hyperrun domains``.
        image: the image recipe of the containers.
        agent: the agent template.
        task_timeout_s: the deadline of one row, in seconds.
    """

    name: str = attrs.field(validator=_named)
    files: Mapping[Split, Path]
    inputs: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_all_text)
    label: str = attrs.field(default="label", validator=_TEXT)
    id: str | None = attrs.field(default=None, validator=attrs.validators.optional(_TEXT))
    ordered: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_all_text)
    description: str = attrs.field(
        default="a table of questions with known answers", validator=_TEXT
    )
    image: str = attrs.field(default="base", validator=_TEXT)
    agent: str = attrs.field(default="llm", validator=_TEXT)
    task_timeout_s: float = attrs.field(default=600.0, converter=float, validator=_positive)

    def __attrs_post_init__(self) -> None:
        """Check that agents cannot see the label, and that an order has two labels or more.

        Raises:
            SpecError: a field is invalid.
        """
        if self.label in self.inputs:
            raise SpecError("inputs", self.inputs, f"columns without the label {self.label!r}")
        if self.label == self.id:
            raise SpecError("id", self.id, "another column than the label: agents see ids")
        if len(self.ordered) == 1:
            raise SpecError("ordered", self.ordered, "at least two labels, or none")


def load_definition(source: str | None) -> Definition:
    """Return the definition in a TOML file, or the default definition of a table.

    Args:
        source: the path of a definition or of a table; None means the sample.

    Raises:
        SpecError: the definition is invalid or cannot be read.
    """
    path = _SAMPLE if source is None else Path(source).absolute()
    if path.suffix in _SUFFIXES:
        return Definition(
            name=re.sub(r"[^A-Za-z0-9._-]", "_", path.stem), files={Split(name="train"): path}
        )
    try:
        value = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(
            "table", str(path), f"a readable .toml, .csv or .jsonl file ({error})"
        ) from error
    return _parse(value, path)


def _parse(value: Mapping[str, Any], path: Path) -> Definition:
    _check_keys(value, _KNOWN, path)
    splits = value.get("splits")
    if (
        not isinstance(splits, dict)
        or not splits
        or not all(isinstance(item, dict) for item in splits.values())
    ):
        raise SpecError(
            "splits", splits, f"at least one table [splits.NAME] with a file, in {path}"
        )
    if not value.get("inputs"):
        raise SpecError(
            "inputs", value.get("inputs"), f"the columns that agents may see, in {path}"
        )
    if SPLITS[0] not in splits:
        raise SpecError("splits", tuple(splits), f"[splits.{SPLITS[0]}] among them, in {path}")
    found = [_split_file(name, item, path) for name, item in splits.items()]
    files = dict(sorted(found, key=lambda pair: SPLITS.index(pair[0].name)))
    rest = {key: item for key, item in value.items() if key != "splits"}
    try:
        return Definition(**{"name": path.stem, **rest}, files=files)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:
        raise SpecError("table", str(path), f"values of the documented types ({error})") from error


def _split_file(name: str, value: Mapping[str, Any], path: Path) -> tuple[Split, Path]:
    _check_keys(value, _KNOWN_OF_SPLIT, path)
    file = value.get("file")
    if not isinstance(file, str) or Path(file).suffix not in _SUFFIXES:
        raise SpecError(
            f"splits.{name}.file", file, f"the path of a {' or '.join(_SUFFIXES)} file, in {path}"
        )
    staged = {key: item for key, item in value.items() if key != "file"}
    try:
        return Split(name=name, **staged), path.parent / file
    except (TypeError, ValueError) as error:
        allowed = f"a split {', '.join(SPLITS)} with numbers for its first stage, in {path}"
        raise SpecError(f"splits.{name}", value, allowed) from error


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    for key in value:
        if key not in known:
            raise SpecError("table", key, f"the known keys in {path} are {', '.join(known)}")
