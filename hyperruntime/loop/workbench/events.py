"""The events that a run reports to its callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

StepState = Literal["start", "done", "failed"]


@attrs.frozen(kw_only=True)
class StepEvent:
    """A step of a generation began or ended.

    Attributes:
        generation: id of the generation, as text.
        step: one of ``generation.STEPS``, or ``"generation"`` for the end of the whole generation.
        state: ``start``, ``done`` or ``failed``.
        duration_s: duration in seconds; 0 for ``start``.
        score: score of the generation; only with the step ``"generation"``.
        detail: one sentence for people, or "".
    """

    generation: str
    step: str
    state: StepState
    duration_s: float = 0.0
    score: float | None = None
    detail: str = ""


OnEvent = Callable[[StepEvent], None]
