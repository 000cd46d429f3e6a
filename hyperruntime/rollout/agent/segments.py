"""Join the tokens of a trajectory's turns into segments.

All token ids come from the server. No text is tokenised here, so the tokens cannot differ from the server's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from hyperruntime.errors import ModelError
from hyperruntime.rollout.run_files.record import Segment


class TokenRecord:
    """The tokens of one trajectory, turn by turn.

    A turn extends the last segment if its prompt starts with all tokens of the segment; else it starts a new segment.
    So each emitted token is unmasked exactly once, even if a chat template renders earlier turns differently.

    Attributes:
        missing: number of turns without the token ids of the prompt or of the emitted tokens.
    """

    def __init__(self) -> None:
        """Create an empty record."""
        self.missing = 0
        self._segments: list[_Open] = []

    def add(
        self, prompt_ids: Sequence[int] | None, ids: Sequence[int] | None, logprobs: Sequence[float] | None
    ) -> None:
        """Add a turn.

        Args:
            prompt_ids: token ids of the whole prompt, or None if the server does not return them.
            ids: the emitted token ids, or None.
            logprobs: one log probability for each of ``ids``, or None.

        Raises:
            ModelError: the numbers of logprobs and ids differ, or a logprob is not finite.
        """
        if prompt_ids is None or ids is None:
            self.missing += 1
            return
        if logprobs is not None and len(logprobs) != len(ids):
            raise ModelError(
                f"the server sent {len(ids)} token ids and {len(logprobs)} log probabilities for one turn; these "
                "numbers must be equal, so check the server with `hyperrun rollout preflight`"
            )
        if logprobs is not None and not all(math.isfinite(value) for value in logprobs):
            raise ModelError("the server sent log probabilities that are not finite; check the model that it serves")
        last = self._segments[-1].ids if self._segments else None
        if last is None or list(prompt_ids[: len(last)]) != last:
            self._segments.append(_Open())
        self._segments[-1].extend(prompt_ids, ids, logprobs)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments, or an empty tuple if the token ids of any turn are missing."""
        if self.missing:
            return ()
        return tuple(Segment(**attrs.asdict(s, recurse=False)) for s in self._segments)


@attrs.define
class _Open:
    """A segment that can be extended."""

    ids: list[int] = attrs.field(factory=list)
    mask: list[int] = attrs.field(factory=list)
    logprobs: list[float | None] = attrs.field(factory=list)

    def extend(self, prompt: Sequence[int], emitted: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Add the new tokens of a prompt, and the tokens emitted after it."""
        fresh = len(prompt) - len(self.ids)
        self.ids += [*prompt[len(self.ids) :], *emitted]
        self.mask += [0] * fresh + [1] * len(emitted)
        self.logprobs += [None] * fresh
        self.logprobs += [None] * len(emitted) if logprobs is None else list(logprobs)


def emitted(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the unmasked ids of all segments in order."""
    return tuple(token for s in segments for token, mask in zip(s.ids, s.mask, strict=True) if mask)
