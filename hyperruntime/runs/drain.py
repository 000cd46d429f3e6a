"""Whether a run takes new work: it should end soon, and what it has begun may still be finished."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Drain:
    """Ends a run without loss: it takes no new work, and ends when the work that it has is done.

    Attributes:
        begun: whether the run takes no new work. Another thread may set it.
    """

    begun: bool = False
