"""Items of a data set that an environment cannot offer: they are left out by name, or fail the run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs

from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.option_fields import OneOf

SKIP = "skip"
FAIL = "fail"
UNSUPPORTED = OneOf((SKIP, FAIL))
"""Validator of an environment's option ``unsupported``."""
_NAMED = 5


@attrs.define
class LeftOut:
    """The items that are left out, so that one odd row does not make a data set unusable.

    Attributes:
        unsupported: ``skip`` leaves an invalid or unsupported item out; ``fail`` raises its error.
        reasons: why an item was left out, by its name.
    """

    unsupported: str = SKIP
    reasons: dict[str, str] = attrs.field(init=False, factory=dict)

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Read an item; if that is refused, note why and go on.

        Args:
            name: the item's name; the place of its row if it has none.

        Raises:
            SpecError, UnsupportedOptionError: the item is refused, and ``unsupported`` is ``fail``.
        """
        try:
            yield
        except (SpecError, UnsupportedOptionError) as error:
            if self.unsupported == FAIL:
                raise
            self.reasons.setdefault(name, str(error))

    def check_any(self, count: int, field: str, source: str) -> None:
        """Refuse a source of which nothing is left.

        Args:
            count: number of the items that are left.
            field: name of the source's option.
            source: the source.

        Raises:
            SpecError: ``count`` is 0, and items were left out.
        """
        if not count and self.reasons:
            raise SpecError(field, source, f"a source with supported items: {shown(self.reasons)}")


def shown(reasons: Mapping[str, str]) -> str:
    """Return the number, the names and the reasons of items that were left out, as one line for people."""
    named = "; ".join(f"{name} ({reason})" for name, reason in list(reasons.items())[:_NAMED])
    more = f"; and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return f"{len(reasons)} unsupported: {named}{more}"


def left_out_of(environment: object) -> Mapping[str, str]:
    """Return why items of an environment were left out, by name; see :class:`~.environment.Environment`."""
    left: Mapping[str, str] = getattr(environment, "left_out", {})
    return left


def chosen_names(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return names without duplicates: each wanted name, or those that a wanted pattern (``*``, ``?``, ``[``) matches.

    Args:
        wanted: names and patterns; their order is that of the result.
        names: the names that exist.
    """
    known = dict.fromkeys(names)
    found = ([one] if one in known else fnmatch.filter(known, one) for one in wanted)
    return list(dict.fromkeys(name for matches in found for name in matches))
