"""Read the usage of an exchange from answers of both wire formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyperruntime.gateway.log.budget import Tokens

_BYTES_PER_TOKEN = 4
_MOST_TOKENS = 10**9
_INPUT = ("prompt_tokens", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")


def _count(usage: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = [usage.get(name) for name in names]
    return sum(min(n, _MOST_TOKENS) for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0)


def usage_of(message: Any) -> Tokens | None:  # noqa: ANN401 - JSON from a server
    """Return the usage that an answer or one event of a stream reports; None if it reports none."""
    if not isinstance(message, dict):
        return None
    inner = message.get("message")
    usage = message.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None)
    if not isinstance(usage, dict):
        return None
    return Tokens(input=_count(usage, _INPUT), output=_count(usage, _OUTPUT))


def estimate(request_bytes: int, answer_bytes: int) -> Tokens:
    """Estimate the usage from sizes in bytes, for an answer without usage or a truncated stream."""
    return Tokens(input=request_bytes // _BYTES_PER_TOKEN, output=answer_bytes // _BYTES_PER_TOKEN, estimated=True)


class StreamUsage:
    """Follows the usage of a stream: several events may report it, with growing numbers."""

    def __init__(self) -> None:
        """Start with unknown usage."""
        self._input = self._output = 0
        self._known = False

    def see(self, tokens: Tokens | None) -> None:
        """Record the usage that an event reports; None if it reports none."""
        if tokens is not None:
            self._known = True
            self._input, self._output = max(self._input, tokens.input), max(self._output, tokens.output)

    def total(self, *, complete: bool, request_bytes: int, answer_bytes: int) -> Tokens:
        """Return the usage of the stream.

        Args:
            complete: whether the stream was read to its end. If not, the output is at least the estimate.
            request_bytes: size of the request's body, for the estimate.
            answer_bytes: size of the stream, for the estimate.
        """
        guess = estimate(request_bytes, answer_bytes)
        if self._known and complete:
            return Tokens(input=self._input, output=self._output)
        return Tokens(input=self._input or guess.input, output=max(self._output, guess.output), estimated=True)
