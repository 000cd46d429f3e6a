"""The axis of scores in a picture: round steps around what there is. Imports nothing of the project."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

_LEAST_SPREAD = 1e-3
_MOST_STEPS = 6


@attrs.frozen(kw_only=True)
class ScoreAxis:
    """Scores from ``low`` to ``high`` on a vertical line.

    Attributes:
        low, high: scores at its ends.
        step: between two ticks; 1, 2 or 5 times a power of ten.
        top, bottom: where its ends are, in pixels downward.
    """

    low: float
    high: float
    step: float
    top: float
    bottom: float

    @classmethod
    def fit(cls, scores: Sequence[float], *, top: float, bottom: float) -> ScoreAxis:
        """Return the axis on which all scores have a place; from 0 to 1 where there are none."""
        low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
        spread = max(high - low, _LEAST_SPREAD)
        power = 10.0 ** math.floor(math.log10(spread / 3))
        step = power * next(factor for factor in (1, 2, 5, 10) if spread <= power * factor * _MOST_STEPS)
        first = math.floor(low / step - 0.1)
        last = max(first + 1, math.ceil(high / step - 1e-6))
        return cls(low=first * step, high=last * step, step=step, top=top, bottom=bottom)

    def ticks(self) -> list[float]:
        """Return the scores that get a line."""
        return [self.low + index * self.step for index in range(round((self.high - self.low) / self.step) + 1)]

    def text(self, score: float) -> str:
        """Return a tick's label, with as many decimals as the steps need."""
        return f"{score:.{max(0, -math.floor(math.log10(self.step) + 1e-9))}f}"

    def level(self, score: float) -> float:
        """Return where a score is between the ends, in [0, 1]."""
        return (score - self.low) / (self.high - self.low)

    def y(self, score: float) -> float:
        """Return a score's place in pixels."""
        return self.bottom - self.level(score) * (self.bottom - self.top)
