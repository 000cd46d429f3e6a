"""Parameter types of click options: sizes, durations, mounts, pairs. An invalid value is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.units import parse_duration, parse_size

if TYPE_CHECKING:
    from hyperruntime.spec import Mount

    _ParamType = click.ParamType[Any]
else:  # generic for type checkers only: older releases of click have a plain class
    _ParamType = click.ParamType

_RUN_FILE = "run.json"
_ORIGINAL = "gen_initial/hyperagents"
_LIMITS = ("memory", "cpus", "pids", "disk")


def option_name(param: click.Parameter | None) -> str:
    """Return the name of an option as the user writes it."""
    return "value" if param is None else (param.opts[-1] if param.opts else str(param.name))


class Size(_ParamType):
    """A size in bytes, such as ``512m``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Return the number of bytes."""
        return value if isinstance(value, int) else parse_size(str(value), option_name(param))


class Count(_ParamType):
    """A whole number, or ``none`` for no limit."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:  # noqa: ANN401
        """Return the number, or None."""
        if value == "none":
            return None
        try:
            return int(value)
        except ValueError:
            raise SpecError(option_name(param), value, "a whole number, or none") from None


class Duration(_ParamType):
    """A duration above zero, such as ``10s`` or ``5m``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return the number of seconds."""
        field = option_name(param)
        seconds = float(value) if isinstance(value, (int, float)) else parse_duration(str(value), field)
        if not 0 < seconds < float("inf"):
            raise SpecError(field, value, "a duration above zero")
        return seconds


class Names(_ParamType):
    """Names separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:  # noqa: ANN401
        """Return the names."""
        if not isinstance(value, str):
            return tuple(value)
        return tuple(name.strip() for name in value.split(",") if name.strip())


class Counts(_ParamType):
    """Whole numbers separated by commas."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:  # noqa: ANN401
        """Return the numbers."""
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        try:
            return tuple(int(item) for item in items)
        except ValueError:
            raise SpecError(option_name(param), value, "whole numbers separated by commas, such as 2,-1") from None


class LimitsText(_ParamType):
    """Limits of a container, such as ``memory=2g,cpus=1.5,pids=512,disk=10g``."""

    name = "limits"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:  # noqa: ANN401
        """Return the text of each given limit, by name."""
        if isinstance(value, dict):
            pairs = {str(name): str(text) for name, text in value.items()}
        else:
            parts = [part.partition("=") for part in str(value).split(",") if part.strip()]
            pairs = {name.strip(): text.strip() for name, _, text in parts}
        for name, text in pairs.items():
            if name not in _LIMITS:
                raise SpecError(option_name(param), value, unknown_name("limit", name, _LIMITS))
            if not text:
                raise SpecError(option_name(param), value, f"give {name} a value, such as memory=2g,cpus=1.5,pids=512")
        return pairs


class Gpus(_ParamType):
    """``all``, ``auto:N``, or GPU names separated by commas."""

    name = "gpus"

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | tuple[str, ...] | None:
        """Return the value for ``ContainerSpec.gpus``."""
        from hyperruntime.spec import as_gpus

        names = value.split(",") if isinstance(value, str) and "," in value else value
        try:
            return as_gpus(names)
        except SpecError as error:
            raise SpecError(option_name(param), error.value, error.allowed) from None


class EnvPair(_ParamType):
    """``NAME=VALUE``, or ``NAME`` to pass on a variable of this process."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401
        """Return the name and the value."""
        name, equals, text = str(value).partition("=")
        if not equals and name in os.environ:
            return name, os.environ[name]
        if not equals or not name:
            raise SpecError(option_name(param), value, "NAME=VALUE, or the NAME of a variable that is set here")
        return name, text


class OptionPair(_ParamType):
    """``NAME=VALUE``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401
        """Return the name and the value."""
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            raise SpecError(option_name(param), value, "NAME=VALUE")
        return name, text


class EnvText(_ParamType):
    """``NAME=VALUE``, or ``NAME``: then the value is read when a run starts, and stored in no file."""

    name = "name[=value]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:  # noqa: ANN401
        """Return the name, and the value or None."""
        name, equals, text = str(value).partition("=")
        if not name or (not equals and name not in os.environ):
            raise SpecError(option_name(param), value, "NAME=VALUE, or the NAME of a variable that is set here")
        return name, text if equals else None


class JsonObject(_ParamType):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:  # noqa: ANN401
        """Return the object."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SpecError(option_name(param), value, 'a JSON object, such as {"top_p": 0.95}')
        return found


class Image(_ParamType):
    """A recipe name or image reference."""

    name = "ref"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return the reference."""
        from hyperruntime.images.recipes import image_reference

        return image_reference(value)


class MountPair(_ParamType):
    """``SOURCE:TARGET`` (read-only) or ``SOURCE:TARGET:rw``."""

    name = "source:target[:rw]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mount:  # noqa: ANN401
        """Return the mount; its source must exist."""
        from hyperruntime.spec import Mount

        text, mode = str(value), "ro"
        for ending in ("ro", "rw"):
            if text.endswith(f":{ending}"):
                text, mode = text[:-3], ending
        source, target = split_pair(text, option_name(param), "SOURCE:TARGET, or SOURCE:TARGET:rw")
        return Mount(source=existing_path(source, option_name(param)), target=target, read_only=mode == "ro")


class CopyPair(_ParamType):
    """``SOURCE:TARGET``."""

    name = "source:target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401
        """Return both paths."""
        return split_pair(str(value), option_name(param), "SOURCE:TARGET")


class Generation(_ParamType):
    """The number of a generation, ``initial``, or ``best``."""

    name = "generation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:  # noqa: ANN401
        """Return the generation's id, or ``best``."""
        text = str(value).removeprefix("gen_")
        if text in ("initial", "best"):
            return text
        if text.isascii() and text.isdigit():
            return int(text)
        raise SpecError(option_name(param), value, "a generation's number, initial, or best")


class RunDirectory(_ParamType):
    """A run directory of the generate loop, made by hyperruntime or by HyperAgents."""

    name = "run_dir"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """Return the directory's path."""
        path = Path(os.path.expanduser(str(value)))
        if (path / _RUN_FILE).is_file() or (path / _ORIGINAL).is_dir():
            return str(path)
        if path.is_dir():
            raise WrongUsageError(
                f"{value!r} is not a run directory: {_RUN_FILE} is missing; give a generate_<run-id> directory"
            )
        runs = [str(found.parent) for found in path.parent.glob(f"*/{_RUN_FILE}")]
        raise WrongUsageError(unknown_name("run directory", str(value), runs))


def split_pair(text: str, field: str, allowed: str) -> tuple[str, str]:
    """Return the text before and after the last colon.

    Args:
        text: the pair, such as ``./data:/data``.
        field: the option's name, for the error message.
        allowed: the allowed form, for the error message.

    Raises:
        SpecError: a part is missing.
    """
    source, colon, target = text.rpartition(":")
    if not colon or not source or not target:
        raise SpecError(field, text, allowed)
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
        raise WrongUsageError(f"{field}: {path!r} does not exist on this machine; give an existing path")
    return absolute


GPUS, COUNT, LIMITS = Gpus(), Count(), LimitsText()
SIZE, DURATION, NAMES, COUNTS, RUN_DIRECTORY = Size(), Duration(), Names(), Counts(), RunDirectory()
GENERATION, IMAGE, JSON_OBJECT = Generation(), Image(), JsonObject()
ENV_PAIR, ENV_TEXT, OPTION_PAIR, MOUNT_PAIR, COPY_PAIR = EnvPair(), EnvText(), OptionPair(), MountPair(), CopyPair()
