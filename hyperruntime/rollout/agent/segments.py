"""Put the tokens of a trajectory's turns together into segments.

The server's word is taken for every token: nothing is tokenised here, so nothing can be tokenised differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hyperruntime.errors import ModelError
from hyperruntime.rollout.run_files.record import Segment


class TokenRecord:
    """The tokens of one trajectory, turn by turn.

    A turn extends the last segment where its prompt begins with all that the segment holds; else it begins a new one.
    So each emitted token is unmasked exactly once, however a chat template writes earlier turns anew.

    Attributes:
        missing: how many turns came without the ids of their prompt and of what was emitted.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.missing = 0
        self._segments: list[_Open] = []

    def add(
        self, prompt_ids: Sequence[int] | None, ids: Sequence[int] | None, logprobs: Sequence[float] | None
    ) -> None:
        """Add a turn.

        Args:
            prompt_ids: of the whole prompt, or None where the server does not say.
            ids: that were emitted, or None.
            logprobs: one for each of ``ids``, or None.

        Raises:
            ModelError: there are not as many logprobs as ids, or one is no number.
        """
        if prompt_ids is None or ids is None:
            self.missing += 1
            return
        if logprobs is not None and len(logprobs) != len(ids):
            raise ModelError(
                f"the server sent {len(ids)} token ids and {len(logprobs)} log probabilities for one turn; they cannot "
                "be told apart, so run `hyperrun rollout preflight` against it"
            )
        prompt = list(prompt_ids)
        if logprobs is not None and not all(math.isfinite(value) for value in logprobs):
            raise ModelError("the server sent log probabilities that are no numbers; is its model broken?")
        if not self._segments or not self._segments[-1].begins(prompt):
            self._segments.append(_Open())
        self._segments[-1].extend(prompt, list(ids), logprobs)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments; none where a turn is missing, for a record with holes is no record."""
        if self.missing:
            return ()
        return tuple(Segment(ids=s.ids, mask=s.mask, logprobs=s.logprobs) for s in self._segments)


class _Open:
    """A segment that grows."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float | None] = []

    def begins(self, prompt: list[int]) -> bool:
        """Tell whether a prompt begins with all that is here."""
        return len(prompt) >= len(self.ids) and prompt[: len(self.ids)] == self.ids

    def extend(self, prompt: list[int], emitted: list[int], logprobs: Sequence[float] | None) -> None:
        """Add what of a prompt is new, and what was emitted after it."""
        fresh = len(prompt) - len(self.ids)
        self.ids += prompt[len(self.ids) :] + emitted
        self.mask += [0] * fresh + [1] * len(emitted)
        self.logprobs += [None] * fresh
        self.logprobs += [None] * len(emitted) if logprobs is None else list(logprobs)


def emitted(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the unmasked ids of all segments, one after the other."""
    return tuple(token for s in segments for token, mask in zip(s.ids, s.mask, strict=True) if mask)
