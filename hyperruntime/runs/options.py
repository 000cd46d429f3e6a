"""The id of a run, and the options that a resume may not change."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from os import PathLike, fspath
from typing import Any, TypeVar

import attrs

from hyperruntime.errors import RunError
from hyperruntime.option_fields import OptionField, option_fields

RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
RUN_ID_FORM = "at most 100 letters, digits, '.', '_' and '-', the first a letter, a digit or '_'"
_Options = TypeVar("_Options", bound=attrs.AttrsInstance)


class OptionChangedError(RunError):
    """A run is resumed with another value of an option that may not change."""

    exit_code = 2


def check_unchanged(
    before: _Options,
    now: _Options,
    run_dir: str | PathLike[str],
    *,
    said: Collection[tuple[str, ...]] | None = None,
    plain: Callable[[OptionField, _Options], Any] | None = None,
) -> None:
    """Check that a resumed run keeps the options that may not change.

    Args:
        before: the stored options of the run.
        now: the options with which it is resumed.
        run_dir: the run directory.
        said: paths of the options to compare, which the user gave; None: all, and all fields of
            which no part is an option that may change.
        plain: returns the value of an option in a form that can be compared; None: as it is.

    Raises:
        OptionChangedError: an option differs.
    """
    plain = plain or _value
    fields = sorted(option_fields(type(now)), key=lambda one: one.name)
    for field in fields:
        if not field.option.changes and (said is None or field.path in said):
            _compare(field.flag, run_dir, plain(field, before), plain(field, now))
    if said is None:
        may_change = {field.path[0] for field in fields if field.option.changes}
        for name in (one.name for one in attrs.fields(type(now)) if one.name not in may_change):
            _compare(name, run_dir, getattr(before, name), getattr(now, name))


def _value(field: OptionField, options: object) -> Any:  # noqa: ANN401 - of any field
    return None if getattr(options, field.path[0]) is None else field.of(options)


def _compare(name: str, run_dir: str | PathLike[str], before: object, now: object) -> None:
    if before != now:
        shown = " ".join(map(str, before)) if isinstance(before, tuple) else repr(before)
        raise OptionChangedError(
            f"{name} cannot change when a run is resumed; run {fspath(run_dir)!r} has {shown}; "
            "leave it out, or start another run"
        )
