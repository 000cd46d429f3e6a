"""One field of an options class defines a command line option, a key of TOML files and a stored
value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from hyperruntime.cli.config_file import generate_table
from hyperruntime.cli.field_options import (
    all_options,
    changeable_options,
    field_values,
    given_changes,
)
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.rollout.run import make_options, run
from hyperruntime.cli.rollout.train import TrainSettings
from hyperruntime.errors import AgentError, ArchiveError, SpecError
from hyperruntime.option_fields import (
    AtLeast,
    OneOf,
    Option,
    about,
    changed,
    from_json,
    option,
    parts,
    to_json,
)
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.spec import Limits


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class Trip:
    """Options with a field of each kind."""

    waves: int = option(3, "Waves.", check=AtLeast(1), changes=True, resume_help="More waves.")
    pause_s: float = option(60.0, "Pause.", changes=True)
    colour: str | None = option(None, "Colour.", check=OneOf(("red", "blue")))
    names: tuple[str, ...] = attrs.field(
        default=("a",), converter=_texts, metadata=about("Names.", kind="names")
    )
    quiet: bool = option(False, "Say less.")
    limits: Limits = attrs.field(
        factory=Limits, metadata=parts({"memory_bytes": Option(flag="--memory", help="Memory.")})
    )


@click.command()
@all_options(Trip, {"colour": (click.option("--other", help="Of the command itself."),)})
def trip(**values: Any) -> None:
    """Travel."""


def parsed(*args: str, **more: Any) -> Trip:
    """Return the options that these arguments set."""
    return changed(Trip(), field_values(Trip, trip.make_context("trip", list(args), **more).params))


def test_a_field_defines_an_option_with_its_help_unit_and_default() -> None:
    lines = trip.get_help(click.Context(trip)).splitlines()
    shown = [" ".join(line.split()) for line in lines if line.startswith("  --")]
    assert shown[:-1] == [
        "--waves INTEGER RANGE Waves. [default: 3; x>=1]",
        "--pause DURATION Pause. [default: (1m00s)]",
        "--other TEXT Of the command itself.",
        "--colour [red|blue] Colour.",
        "--names NAMES Names.",
        "--quiet Say less.",
        "--memory SIZE Memory.",
    ]
    assert parsed() == Trip()
    args = (
        "--waves",
        "5",
        "--pause",
        "2m",
        "--names",
        "x,y",
        "--names",
        "z",
        "--quiet",
        "--memory",
        "1g",
    )
    assert parsed(*args) == Trip(
        waves=5,
        pause_s=120.0,
        names=("x", "y", "z"),
        quiet=True,
        limits=Limits(memory_bytes=1024**3),
    )
    with pytest.raises(click.UsageError, match="'green' is not one of"):
        parsed("--colour", "green")


@pytest.mark.parametrize(
    ("field", "value"), [("waves", 0), ("waves", True), ("waves", None), ("colour", "green")]
)
def test_a_field_checks_its_values(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=field):
        Trip(**{field: value})  # type: ignore[arg-type]


def test_a_field_defines_a_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[generate]\npause = "3s"\nnames = ["x", "y"]\nmemory = "64m"\n')
    assert parsed("--waves", "4", default_map=generate_table(path, trip)) == Trip(
        waves=4, pause_s=3.0, names=("x", "y"), limits=Limits(memory_bytes=64 * 1024**2)
    )
    path.write_text("[generate]\npauze = 3\n")
    with pytest.raises(AgentError, match="did you mean 'pause'"):
        generate_table(path, trip)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("waves = true", "waves = true: give a value in place of true or false"),
        ("waves = [3]", r"waves = \[3\]: give one value"),
        ("waves = 1.9", "1.9"),
        ("pause = true", "pause = true: give a value"),
        ("colour = {red = 1}", "give one value"),
    ],
)
def test_a_value_of_the_wrong_type_in_a_file_is_an_error(
    line: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f"[generate]\n{line}\n")
    with pytest.raises((AgentError, click.UsageError), match=said):
        parsed(default_map=generate_table(path, trip))


def test_a_field_is_stored_and_files_of_other_versions_are_read() -> None:
    chosen = Trip(waves=7, names=("x", "y"), limits=Limits(memory_bytes=1024**3))
    stored = json.loads(json.dumps(to_json(chosen)))
    assert from_json(Trip, stored, strict=True) == chosen
    assert from_json(Trip, {"waves": 7}, strict=True) == Trip(waves=7)
    newer = {"waves": 7, "speed": 1, "limits": {"colour": "red"}}
    assert from_json(Trip, newer, strict=False) == Trip(waves=7)
    with pytest.raises(ArchiveError, match="speed"):
        from_json(Trip, newer, strict=True)
    with pytest.raises(ArchiveError, match=r"options\.waves='7' is not allowed: a whole number"):
        from_json(Trip, {"waves": "7"}, strict=False)


def test_only_fields_marked_as_changeable_may_change_on_resume() -> None:
    @click.command()
    @changeable_options(Trip)
    def resume(**values: Any) -> None:
        """Resume."""

    assert resume.make_context("resume", []).params == {"waves": None, "pause": None}
    assert [param.name for param in resume.params] == ["waves", "pause"]
    assert "More waves." in resume.get_help(click.Context(resume))
    ctx = trip.make_context("trip", ["--pause", "5s"])
    assert given_changes(ctx, Trip, ctx.params, "it is over") == {("pause_s",): 5.0}
    ctx = trip.make_context("trip", ["--pause", "5s", "--memory", "1g"])
    with pytest.raises(WrongUsageError, match="--memory cannot change when it is over"):
        given_changes(ctx, Trip, ctx.params, "it is over")


def test_the_options_of_rollouts_have_the_defaults_of_their_class() -> None:
    args = ["--environment", "x", "--model", "m", "--base-url", "http://h/v1"]
    made = make_options(run.make_context("run", args).params)
    assert made == RolloutOptions(
        environment="x", model=ModelOptions(name="m", base_url="http://h/v1")
    )


def test_stored_settings_of_a_training_keep_their_format() -> None:
    stored = {"environment": "terminal", "options": [["tasks", "builtin"]], "updates": 3}
    settings = from_json(TrainSettings, stored, strict=False)
    assert dict(settings.options) == {"tasks": "builtin"}
    assert json.loads(json.dumps(to_json(settings))) == {**to_json(TrainSettings()), **stored}
