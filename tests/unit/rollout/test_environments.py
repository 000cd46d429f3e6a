"""Environments are loaded by name or by class, with the options that the user gave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hyperruntime.cli.app import app
from hyperruntime.cli.command import State
from hyperruntime.errors import DriverLoadError, SpecError
from hyperruntime.rollout.environment import EnvironmentBase, Item
from hyperruntime.rollout.loading import load_environment
from hyperruntime.spec import ContainerSpec

PROGRAM = """
from hyperruntime.rollout.environment import EnvironmentBase

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

class Own(Word):
    slots_per_container = None
    left_out = {"odd": "no word"}
    def time_limit_s(self, item): return 60.0

class Based(EnvironmentBase):
    name = "based"
    items = spec = setup = messages = verify = Word.items
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return a file with environments, in a directory with a space in its name."""
    (tmp_path / "my files").mkdir()
    (tmp_path / "my files" / "word.py").write_text(PROGRAM)
    return str(tmp_path / "my files" / "word.py")


def test_a_class_is_found_in_a_file_and_in_a_module(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "my files"))
    assert load_environment(f"{file}:Word").name == "word"
    assert load_environment("word:Word").name == "word"


def test_options_are_converted_to_the_annotated_types(file: str) -> None:
    """The command line passes text only."""
    options = {"count": "5", "rate": "0.5", "loud": "yes", "words": "a, b"}
    made: object = load_environment(f"{file}:Word", options)
    assert made.given == (5, 0.5, True, ("a", "b"))  # type: ignore[attr-defined]
    made = load_environment(f"{file}:Word", {"count": 7})
    assert made.given == (7, None, False, ())  # type: ignore[attr-defined]


def test_an_environment_without_the_base_class_has_its_defaults(file: str) -> None:
    item = Item(id="first")
    for name in ("Word", "Based"):
        made = load_environment(f"{file}:{name}")
        assert (made.slots_per_container, made.image_workdir, made.left_out) == (1, False, {})
        assert (made.time_limit_s(item), made.cache_key(item)) == (None, "first")
        made.check_items([item], ContainerSpec(image="base"))
        lease: Any = object()
        assert asyncio.run(made.agent_lease(item, lease, {})) is lease


def test_an_environment_without_the_base_class_keeps_its_own_members(file: str) -> None:
    made = load_environment(f"{file}:Own")
    assert (made.slots_per_container, made.left_out) == (None, {"odd": "no word"})
    assert (made.time_limit_s(Item(id="first")), made.cache_key(Item(id="first"))) == (60, "first")
    assert isinstance(made, EnvironmentBase)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cuont": "5"}, "did you mean 'count'"),
        ({"count": "five"}, "whole number"),
        ({"loud": "perhaps"}, "true or false"),
    ],
)
def test_invalid_options_are_rejected(file: str, options: dict[str, str], said: str) -> None:
    """W26: an unknown key is not silently ignored."""
    with pytest.raises(SpecError, match=said):
        load_environment(f"{file}:Word", options)


def test_errors_name_the_missing_environment_module_class_or_member(file: str) -> None:
    with pytest.raises(SpecError, match="environment='no-such'"):
        load_environment("no-such")
    with pytest.raises(SpecError, match="module 'no_such' does not exist"):
        load_environment("no_such.place:Word")
    with pytest.raises(SpecError, match="did you mean 'Word'"):
        load_environment(f"{file}:Wordd")
    with pytest.raises(SpecError, match="lacks spec, setup, messages, verify"):
        load_environment(f"{file}:Half")


def test_an_environment_that_raises_is_named_in_the_error(file: str) -> None:
    """The error message contains the original error."""
    with pytest.raises(DriverLoadError, match="Broken' is broken: OSError: no disk"):
        load_environment(f"{file}:Broken")


def test_the_command_lists_environments_with_their_options() -> None:
    """The listed options are those that the command line accepts after --option."""
    result = CliRunner().invoke(app, ["rollout", "environments", "--json"], obj=State())
    views = {view["environment"]: view for view in json.loads(result.stdout)}
    assert views["swe"]["options"]["items"] == "builtin"
    assert views["swe"]["description"] == "Repair a repository so that given tests pass."
    assert views["swe"]["package"] == "hyperruntime"
