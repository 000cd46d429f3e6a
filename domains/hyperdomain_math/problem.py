"""The description of a problem: what is asked, the record, and how an answer is verified."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import attrs

Verify = Callable[[Any], Fraction]


@attrs.frozen(kw_only=True)
class Problem:
    """An open problem whose answers are verified by exact arithmetic.

    Attributes:
        name: as in ``math:NAME``.
        text: the problem in a paragraph.
        form: the form of an answer.
        goal: whether a larger or a smaller value is better.
        value_name: the word for the value, for messages.
        record: the best published value, as it was published: an integer or a decimal.
        source: where the record was published.
        verify: returns the exact value of an answer, or a rational that is proven not to be better;
            raises RefusedError.
        baseline: returns an answer that needs no thought.
        draw: returns shapes of SVG that show a valid answer.
    """

    name: str
    text: str
    form: str
    goal: Literal["maximise", "minimise"]
    value_name: str
    record: str
    source: str
    verify: Verify
    baseline: Callable[[], Any]
    draw: Callable[[Any], list[str]]

    def score(self, value: Fraction) -> float:
        """Return 1.0 for the record, and more for a value that is certainly better."""
        record = Fraction(self.record)
        found = float(value / record if self.goal == "maximise" else record / value)
        return found if self.is_new(value) else min(1.0, found)

    def is_new(self, value: Fraction) -> bool:
        """Return whether a value is certainly better than the record.

        A record with decimals may have been rounded, so it must be passed by more than one unit of
        its last digit.
        """
        unit = Fraction(0)
        if "." in self.record:
            unit = Fraction(1, 10 ** len(self.record.partition(".")[2]))
        better = value - Fraction(self.record)
        return (better if self.goal == "maximise" else -better) > unit
