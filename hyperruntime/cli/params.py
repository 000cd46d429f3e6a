"""Parameter types of click options: sizes, durations, mounts, pairs. An invalid value is an error
of one sentence.
"""

# ruff: noqa: ANN401 - a value is of any type, from the command line or a TOML file

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.json_values import json_object
from hyperruntime.settings.texts import names, of_text
from hyperruntime.storage.run_files import read_run_json
from hyperruntime.units import parse_duration, parse_size

if TYPE_CHECKING:
    from hyperruntime.spec import Mount

    _ParamType = click.ParamType[Any]
else:  # generic for type checkers only: older releases of click have a plain class
    _ParamType = click.ParamType

Pairs = tuple[tuple[str, str], ...]
_RUN_FILE = "run.json"
_STUDY_FILE = "study.json"
_RUNS = "outputs"
_RUNS_SHOWN = 5
_ORIGINAL = "gen_initial/hyperagents"
_LIMITS = ("memory", "cpus", "pids", "disk", "shm")


class Parsed(_ParamType):
    """A parameter type whose values a function converts."""

    def __init__(self, name: str, parse: Callable[[Any, str], Any]) -> None:
        """Create a type.

        Args:
            name: its placeholder in the help.
            parse: converts a value; gets the value and the option as the user writes it.
        """
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the converted value."""
        return self._parse(
            value,
            self.name if param is None else (param.opts[-1] if param.opts else str(param.name)),
        )


def _size(value: Any, option: str) -> int:
    return value if isinstance(value, int) else parse_size(str(value), option)


def _count(value: Any, option: str) -> int | None:
    found: int | None = of_text(int | None, str(value), option, none=("none",))
    return found


def _duration(value: Any, option: str) -> float:
    seconds = (
        float(value) if isinstance(value, (int, float)) else parse_duration(str(value), option)
    )
    if not 0 < seconds < float("inf"):  # TOML knows inf and nan
        raise SpecError(option, value, "a duration above zero")
    return seconds


def _names(value: Any, option: str) -> tuple[str, ...]:
    return names(value) if isinstance(value, str) else tuple(value)


def _counts(value: Any, option: str) -> tuple[int, ...]:
    items = (
        value.split(",")
        if isinstance(value, str)
        else value
        if isinstance(value, (list, tuple))
        else [value]
    )
    try:
        return tuple(int(str(item)) for item in items)
    except ValueError:
        raise SpecError(option, value, "whole numbers separated by commas, such as 2,-1") from None


def _limits(value: Any, option: str) -> dict[str, str]:
    """Return the text of each given limit, by name."""
    if isinstance(value, dict):
        pairs = {str(name): str(text) for name, text in value.items()}
    else:
        parts = [part.partition("=") for part in str(value).split(",") if part.strip()]
        pairs = {name.strip(): text.strip() for name, _, text in parts}
    for name, text in pairs.items():
        if name not in _LIMITS:
            raise SpecError(option, value, unknown_name("limit", name, _LIMITS))
        if not text:
            raise SpecError(
                option, value, f"give {name} a value, such as memory=2g,cpus=1.5,pids=512"
            )
    return pairs


def _gpus(value: Any, option: str) -> str | tuple[str, ...] | None:
    """Return the value for ``ContainerSpec.gpus``."""
    from hyperruntime.spec import as_gpus

    # one word may be `all` or `auto:1`, so only a text with a comma is a list
    names = value.split(",") if isinstance(value, str) and "," in value else value
    try:
        return as_gpus(names)
    except SpecError as error:
        raise SpecError(option, error.value, error.allowed) from None


def _env_text(value: Any, option: str) -> tuple[str, str | None]:
    """Return the name, and the value or None: then it is read when a run starts, and stored in no
    file.
    """
    name, equals, text = str(value).partition("=")
    if not name or (not equals and name not in os.environ):
        raise SpecError(option, value, "NAME=VALUE, or the NAME of a variable that is set here")
    return name, text if equals else None


def _env_pair(value: Any, option: str) -> tuple[str, str]:
    """Return the name and the value; a name alone passes on a variable of this process."""
    name, text = _env_text(value, option)
    return name, os.environ[name] if text is None else text


def _option_pair(value: Any, option: str) -> tuple[str, str]:
    name, equals, text = str(value).partition("=")
    if not equals or not name:
        raise SpecError(option, value, "NAME=VALUE")
    return name, text


def _json_object(value: Any, option: str) -> dict[str, Any]:
    found = json_object(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise SpecError(option, value, 'a JSON object, such as {"top_p": 0.95}')
    return found


def _image(value: str, option: str) -> str:
    from hyperruntime.images.recipes import image_reference

    return image_reference(value)


def _mount_pair(value: Any, option: str) -> Mount:
    """Return the mount; its source must exist."""
    from hyperruntime.spec import Mount

    text = str(value)
    mode = "ro"
    for ending in ("ro", "rw"):
        if text.endswith(f":{ending}"):
            text, mode = text[:-3], ending
    source, target = _copy_pair(text, option, "SOURCE:TARGET, or SOURCE:TARGET:rw")
    return Mount(source=existing_path(source, option), target=target, read_only=mode == "ro")


def _generation(value: Any, option: str) -> str | int:
    """Return the generation's id, or ``best``."""
    text = str(value).removeprefix("gen_")
    if text in ("initial", "best"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise SpecError(option, value, "a generation's number, initial, or best")


def _run_directory(value: Any, option: str) -> str:
    """Return the path of a run directory of the generate loop, made by hyperruntime or by
    HyperAgents.
    """
    path = Path(os.path.expanduser(str(value)))
    if other := _other_run(path):
        raise WrongUsageError(f"{value!r} is not a run of the generate loop, but {other}")
    if (path / _RUN_FILE).is_file() or (path / _ORIGINAL).is_dir():
        return str(path)
    if path.is_dir():
        raise WrongUsageError(
            f"{value!r} is not a run directory: {_RUN_FILE} is missing; give a "
            "generate_<run-id> directory"
        )
    raise WrongUsageError(f"unknown run directory {str(value)!r}; {_run_hint(path)}")


def _run_hint(path: Path) -> str:
    """Return which runs there are beside a path and in the default directory of runs: similar ones,
    or the newest.
    """
    places = dict.fromkeys((path.parent, Path(_RUNS)))
    runs = {
        str(run.parent): run.parent.name for place in places for run in place.glob(f"*/{_RUN_FILE}")
    }
    ids = {shown: name.partition("_")[2] for shown, name in runs.items()}
    close = set(difflib.get_close_matches(path.name, {*runs.values(), *ids.values()} - {""}, n=1))
    if similar := [shown for shown in runs if {runs[shown], ids[shown]} & close]:
        return f"did you mean {' or '.join(map(repr, similar[:_RUNS_SHOWN]))}?"
    newest = sorted(runs, key=lambda shown: Path(shown, _RUN_FILE).stat().st_mtime, reverse=True)
    return (
        f"known here and in {_RUNS}: {', '.join(newest[:_RUNS_SHOWN])}"
        if newest
        else f"none is here or in {_RUNS}"
    )


def _any_run_directory(value: Any, option: str) -> str:
    """Return the path of a run directory of the generate loop or of rollouts."""
    path = Path(os.path.expanduser(str(value)))
    return str(path) if is_rollout(path) else _run_directory(value, option)


def _run_or_study(value: Any, option: str) -> str:
    """Return the path of a run directory of the generate loop, or of a study."""
    path = Path(os.path.expanduser(str(value)))
    return str(path) if (path / _STUDY_FILE).is_file() else _run_directory(value, option)


def _any_run_or_study(value: Any, option: str) -> str:
    """Return the path of a run directory of the generate loop or of rollouts, or of a study."""
    path = Path(os.path.expanduser(str(value)))
    return str(path) if (path / _STUDY_FILE).is_file() else _any_run_directory(value, option)


def is_rollout(path: Path) -> bool:
    """Return whether a directory is that of ``hyperrun rollout run``."""
    options = (read_run_json(path / _RUN_FILE, below=path) or {}).get("options")
    return isinstance(options, dict) and "environment" in options


def _other_run(path: Path) -> str:
    """Return what a directory is that another command made, and what reads it; "" for all
    others.
    """
    if is_rollout(path):
        shown = shlex.quote(str(path))
        return (
            f"a rollout run: `hyperrun status {shown}` shows it, `hyperrun rollout export "
            f"{shown}` writes its data"
        )
    if (path / _RUN_FILE).is_file() or not path.is_dir():
        return ""
    if (path / _STUDY_FILE).is_file():
        return "a study; give one of the generate_... directories in it"
    made = {
        "results.jsonl": "a batch of `hyperrun rollout batch`",
        "metrics.jsonl": "a training of `hyperrun rollout train`",
    }
    return next(
        (
            f"{what}: its results are in {name}"
            for name, what in made.items()
            if (path / name).is_file()
        ),
        "",
    )


def _copy_pair(value: Any, option: str, allowed: str = "SOURCE:TARGET") -> tuple[str, str]:
    """Return the text before and after the last colon."""
    # the last colon: a path of the host may have one
    source, colon, target = str(value).rpartition(":")
    if not colon or not source or not target:
        raise SpecError(option, str(value), allowed)
    return source, target


def existing_path(path: str, field: str) -> str:
    """Return the absolute form of a host path.

    Args:
        path: the path; ``~`` is expanded.
        field: the option's name, for the error message.

    Raises:
        WrongUsageError: the path does not exist.
    """
    absolute = os.path.abspath(os.path.expanduser(path))
    if not os.path.lexists(absolute):
        raise WrongUsageError(
            f"{field}: {path!r} does not exist on this machine; give an existing path"
        )
    return absolute


GPUS = Parsed("gpus", _gpus)
COUNT = Parsed("count", _count)
LIMITS = Parsed("limits", _limits)
SIZE = Parsed("size", _size)
DURATION = Parsed("duration", _duration)
NAMES = Parsed("names", _names)
COUNTS = Parsed("counts", _counts)
RUN_DIRECTORY = Parsed("run_dir", _run_directory)
ANY_RUN_DIRECTORY = Parsed("run_dir", _any_run_directory)
RUN_OR_STUDY = Parsed("run_dir", _run_or_study)
ANY_RUN_OR_STUDY = Parsed("run_dir", _any_run_or_study)
GENERATION = Parsed("generation", _generation)
IMAGE = Parsed("ref", _image)
JSON_OBJECT = Parsed("json", _json_object)
ENV_PAIR = Parsed("name=value", _env_pair)
OPTION_PAIR = Parsed("name=value", _option_pair)
ENV_TEXT = Parsed("name[=value]", _env_text)
MOUNT_PAIR = Parsed("source:target[:rw]", _mount_pair)
COPY_PAIR = Parsed("source:target", _copy_pair)
