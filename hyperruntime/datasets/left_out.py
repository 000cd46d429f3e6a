"""Odd rows of data sets: they are left out by name, or fail the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs

from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.logs import get_logger
from hyperruntime.option_fields import OneOf

log = get_logger(__name__)
SKIP = "skip"
FAIL = "fail"
UNSUPPORTED = OneOf((SKIP, FAIL))
"""Validator of an option ``unsupported``."""
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

    def take(self, other: LeftOut) -> None:
        """Add what another one left out; of two reasons for one name, the first is kept."""
        self.reasons = {**other.reasons, **self.reasons}

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
    """Return the number, the names and the reasons of items that were left out, as one line for
    people.
    """
    named = "; ".join(f"{name} ({reason})" for name, reason in list(reasons.items())[:_NAMED])
    more = f"; and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return f"{len(reasons)} unsupported: {named}{more}"


def warn_left_out(left: Mapping[str, str], instead: str, **where: str) -> None:
    """Log what was left out of a data set, if anything.

    Args:
        left: the reasons by name.
        instead: how the user refuses such a data set.
        where: which data set, for the log.
    """
    if left:
        log.warning(
            "rows left out", **where, why=shown(left), instead=f"{instead} refuses such a data set"
        )
