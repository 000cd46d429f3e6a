"""Read exercises from a directory in the layout of the public polyglot benchmark.

``LANGUAGE/exercises/practice/NAME`` holds ``.docs/*.md``, ``.meta/config.json`` with the lists ``files.solution`` and
``files.test``, the stubs, the tests and other files of the build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hyperdomain_polyglot.exercise import Exercise
from hyperdomain_polyglot.languages import LANGUAGES
from hyperdomain_polyglot.suite import Suite
from hyperruntime.errors import SpecError

_DOCS = ("introduction.md", "introduction.append.md", "instructions.md", "instructions.append.md")
_HIDDEN = (".docs", ".meta", ".approaches", ".articles")


def read_directory(directory: str) -> dict[str, Exercise]:
    """Return the exercises below a directory by ``LANGUAGE__NAME``: languages take turns, exercises are in name order.

    So the first stage, which decides whether the other exercises are tried, has several languages.

    Raises:
        SpecError: the directory holds no exercise of a known language, or an exercise cannot be read.
    """
    root = Path(directory).absolute()
    below = "exercises/practice/*/.meta/config.json"
    found = {path.parents[1] for pattern in (f"*/{below}", below) for path in root.glob(pattern)}
    of_language: dict[str, list[Path]] = {}
    for folder in sorted(found):
        of_language.setdefault(folder.parents[2].name, []).append(folder)
    exercises = {}
    for turn in zip_longest(*(of_language[language] for language in sorted(of_language) if language in LANGUAGES)):
        for folder in filter(None, turn):
            language = folder.parents[2].name
            exercises[f"{language}__{folder.name}"] = _read(folder, language)
    if not exercises:
        known = ", ".join(LANGUAGES)
        raise SpecError("polyglot", directory, f"a directory with LANGUAGE/exercises/practice/NAME for one of {known}")
    return exercises


def _read(folder: Path, language: str) -> Exercise:
    try:
        config = json.loads((folder / ".meta/config.json").read_text(encoding="utf-8"))
        stubs = {name: (folder / name).read_text(encoding="utf-8") for name in _names(config, "solution")}
        tests = {name: (folder / name).read_bytes() for name in _names(config, "test")}
        docs = [(folder / ".docs" / name) for name in _DOCS]
        statement = "\n".join(path.read_text(encoding="utf-8") for path in docs if path.is_file())
        suite = Suite(language, tests, _others(folder, {*stubs, *tests}), folder.name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError("polyglot", str(folder), f"an exercise that can be read ({error})") from error
    return Exercise(language=language, statement=statement, files=stubs, tests=suite)


def _names(config: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Return the paths of a list of the configuration; they must not leave the exercise's directory."""
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
