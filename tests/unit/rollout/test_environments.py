"""Environments are found by name or by class, and made with what the user wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hyperruntime.cli.app import app
from hyperruntime.cli.command import State
from hyperruntime.errors import DriverLoadError, SpecError
from hyperruntime.rollout.environment_lookup import load_environment

PROGRAM = """
class Word:
    name = "word"
    def __init__(self, *, count: int = 3, rate: float | None = None, loud: bool = False, words: tuple[str, ...] = ()):
        self.given = (count, rate, loud, words)
    def items(self): ...
    def spec(self, item, base, images): ...
    async def setup(self, item, lease): ...
    def messages(self, item, meta): ...
    async def verify(self, item, outcome, lease, fresh, meta): ...

class Broken(Word):
    def __init__(self):
        raise OSError("no disk")

class Half:
    name = "half"
    def items(self): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with environments in a directory with an odd name."""
    (tmp_path / "my files").mkdir()
    (tmp_path / "my files" / "word.py").write_text(PROGRAM)
    return str(tmp_path / "my files" / "word.py")


def test_a_class_is_found_in_a_file_and_in_a_module(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms make the same."""
    monkeypatch.syspath_prepend(str(tmp_path / "my files"))
    assert load_environment(f"{file}:Word").name == "word"
    assert load_environment("word:Word").name == "word"


def test_options_become_what_the_class_is_annotated_with(file: str) -> None:
    """A command line knows text only."""
    options = {"count": "5", "rate": "0.5", "loud": "yes", "words": "a, b"}
    made: object = load_environment(f"{file}:Word", options)
    assert made.given == (5, 0.5, True, ("a", "b"))  # type: ignore[attr-defined]
    made = load_environment(f"{file}:Word", {"count": 7})
    assert made.given == (7, None, False, ())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cuont": "5"}, "did you mean 'count'"),
        ({"count": "five"}, "whole number"),
        ({"loud": "perhaps"}, "true or false"),
    ],
)
def test_wrong_options_are_refused(file: str, options: dict[str, str], said: str) -> None:
    """W26: no unknown key is silently ignored."""
    with pytest.raises(SpecError, match=said):
        load_environment(f"{file}:Word", options)


def test_errors_name_what_is_missing(file: str) -> None:
    """An environment, a module, a class, a member."""
    with pytest.raises(SpecError, match="environment='no-such'"):
        load_environment("no-such")
    with pytest.raises(SpecError, match="module 'no_such' does not exist"):
        load_environment("no_such.place:Word")
    with pytest.raises(SpecError, match="did you mean 'Word'"):
        load_environment(f"{file}:Wordd")
    with pytest.raises(SpecError, match="lacks spec, setup, messages, verify"):
        load_environment(f"{file}:Half")


def test_a_class_that_breaks_is_named(file: str) -> None:
    """Its own error is the cause."""
    with pytest.raises(DriverLoadError, match="Broken' is broken: OSError: no disk"):
        load_environment(f"{file}:Broken")


def test_the_command_lists_environments_with_their_options() -> None:
    """What a user may write after --option."""
    result = CliRunner().invoke(app, ["rollout", "environments", "--json"], obj=State())
    views = {view["environment"]: view for view in json.loads(result.stdout)}
    assert views["swe"]["options"]["items"] == "builtin"
    assert views["swe"]["description"] == "Repair a repository so that given tests pass."
    assert views["swe"]["package"] == "hyperruntime"
