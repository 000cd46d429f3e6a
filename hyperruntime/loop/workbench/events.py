"""What a run tells whoever watches it, while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

StepState = Literal["start", "done", "failed"]


@attrs.frozen(kw_only=True)
class StepEvent:
    """A step of a generation began or ended.

    Attributes:
        generation: its id as text; ``"initial"`` for the first.
        step: which one; see ``generation.STEPS``.
        state: ``start``, ``done`` or ``failed``.
        duration_s: seconds it took, once it ended.
        score: of the generation, on the step that settles it.
        detail: one sentence for people, or "".
    """

    generation: str
    step: str
    state: StepState
    duration_s: float = 0.0
    score: float | None = None
    detail: str = ""


OnEvent = Callable[[StepEvent], None]
