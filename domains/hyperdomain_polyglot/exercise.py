"""Read exercises with their hidden tests: our own, or a directory in the layout of the public
polyglot benchmark.

One of our own is a statement, a stub and calls with known results. In the public layout,
``LANGUAGE/exercises/practice/NAME`` holds ``.docs/*.md``, ``.meta/config.json`` with the lists
``files.solution`` and ``files.test``, the stubs, the tests and other files of the build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import attrs

from hyperdomain_polyglot.cases import Cases
from hyperdomain_polyglot.suite import LANGUAGES, Suite
from hyperruntime.datasets.left_out import LeftOut
from hyperruntime.errors import SpecError
from hyperruntime.json_values import parse_json

_TRAIN = (
    "column_name", "merge_spans", "first_fault", "fold_ranges", "fill_lines", "build_order", "stack_machine",
    "inward_spiral",
)  # fmt: skip
_VAL = ("read_duration", "fewest_coins", "fits_pattern", "tally_votes")
_DOCS = ("introduction.md", "introduction.append.md", "instructions.md", "instructions.append.md")
_HIDDEN = (".docs", ".meta", ".approaches", ".articles")


@attrs.frozen(kw_only=True)
class Exercise:
    """One exercise.

    Attributes:
        language: the programming language.
        statement: the statement of the exercise, as Markdown.
        files: the stubs' texts by relative path; an answer may hold only these files.
        tests: the hidden tests.
    """

    language: str
    statement: str
    files: Mapping[str, str]
    tests: Cases | Suite

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the agent's task."""
        return {"language": self.language, "statement": self.statement, "files": dict(self.files)}


def read_shipped() -> dict[str, dict[str, Exercise]]:
    """Return the exercises of each split, by name."""
    root = resources.files("hyperdomain_polyglot") / "exercises"
    return {
        split: {name: _read_shipped(root / name, name) for name in names}
        for split, names in (("train", _TRAIN), ("val", _VAL))
    }


def _read_shipped(folder: Traversable, name: str) -> Exercise:
    def text(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    return Exercise(
        language="python",
        statement=text("statement.md"),
        files={f"{name}.py": text(f"{name}.py")},
        tests=Cases(name, tuple(json.loads(text("cases.json")))),
    )


def read_directory(directory: str, left: LeftOut) -> dict[str, Exercise]:
    """Return the exercises below a directory by ``LANGUAGE__NAME``: languages take turns, exercises
    are in name order.

    So the first stage, which decides whether the other exercises are tried, has several languages.

    Args:
        directory: a directory with tracks, or one track.
        left: takes the exercises that cannot be read.

    Raises:
        SpecError: the directory holds no exercise of a known language that can be read.
    """
    root = Path(directory).absolute()
    below = "exercises/practice/*/.meta/config.json"
    found = {path.parents[1] for pattern in (f"*/{below}", below) for path in root.glob(pattern)}
    of_language: dict[str, list[Path]] = {}
    for folder in sorted(found):
        of_language.setdefault(folder.parents[2].name, []).append(folder)
    exercises = {}
    for turn in zip_longest(
        *(of_language[language] for language in sorted(of_language) if language in LANGUAGES)
    ):
        for folder in filter(None, turn):
            language = folder.parents[2].name
            with left.reading(name := f"{language}__{folder.name}"):
                exercises[name] = _read_public(folder, language)
    left.check_any(len(exercises), "polyglot", directory)
    if not exercises:
        known = ", ".join(LANGUAGES)
        raise SpecError(
            "polyglot",
            directory,
            f"a directory with LANGUAGE/exercises/practice/NAME for one of {known}",
        )
    return exercises


def _read_public(folder: Path, language: str) -> Exercise:
    try:
        config = parse_json((folder / ".meta/config.json").read_text(encoding="utf-8"))
        stubs = {
            name: (folder / name).read_text(encoding="utf-8") for name in _names(config, "solution")
        }
        tests = {name: (folder / name).read_bytes() for name in _names(config, "test")}
        docs = [(folder / ".docs" / name) for name in _DOCS]
        statement = "\n".join(path.read_text(encoding="utf-8") for path in docs if path.is_file())
        suite = Suite(language, tests, _others(folder, {*stubs, *tests}), folder.name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            "polyglot", str(folder), f"an exercise that can be read ({error})"
        ) from error
    return Exercise(language=language, statement=statement, files=stubs, tests=suite)


def _names(config: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Return the paths of a list of the configuration; they must not leave the exercise's
    directory.
    """
    names = tuple(config["files"][kind])
    for name in names:
        if not isinstance(name, str) or name.startswith("/") or ".." in Path(name).parts:
            raise ValueError(f"files.{kind} holds {name!r}, which is not a path in the exercise")
    if not names:
        raise ValueError(f"files.{kind} is empty")
    return names


def _others(folder: Path, known: set[str]) -> dict[str, bytes]:
    """Return the other files of an exercise, by relative path."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        str(name): path.read_bytes()
        for name, path in paths.items()
        if name.parts[0] not in _HIDDEN and str(name) not in known
    }
