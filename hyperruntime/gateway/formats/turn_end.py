"""Why a model's turn ended: one table of the words that model servers use. For the gateway and for
rollouts. Pure.

The page docs/rollouts.md has the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum

_SHOWN = 300


class TurnEnd(Enum):
    """A reason for the end of a turn.

    Attributes:
        DONE: the model ended its turn.
        CALLS: the model ended its turn with calls of tools.
        CUT: the turn reached a limit of tokens, or repeated itself.
        FULL: the context is full.
        FILTERED: a content filter stopped or removed the text.
        UNSAID: the server names no reason. A whole answer without a reason counts as done; a stream
            as broken off.
        BROKEN: the turn broke off.
        UNKNOWN: the word is not in the table.
    """

    DONE = "done"
    CALLS = "calls"
    CUT = "cut"
    FULL = "full"
    FILTERED = "filtered"
    UNSAID = "unsaid"
    BROKEN = "broken"
    UNKNOWN = "unknown"


_WORDS: Mapping[TurnEnd, str] = {
    TurnEnd.DONE: "stop eos eos_token end_turn stop_sequence complete completed finished pause_turn",
    TurnEnd.CALLS: "tool_calls tool_call tool_use function_call",
    TurnEnd.CUT: "length max_tokens max_output_tokens model_length repetition",
    TurnEnd.FULL: "model_context_window_exceeded context_length_exceeded context_window_exceeded",
    TurnEnd.FILTERED: "content_filter content_filtered guardrail_intervened safety refusal recitation "
    "blocklist prohibited_content spii sensitive",
    TurnEnd.BROKEN: "abort aborted error errored failed failure cancel canceled cancelled interrupted "
    "timeout network_error server_error engine_error insufficient_system_resource "
    "malformed_function_call",
}
_ENDS: Mapping[str, TurnEnd] = {
    word: end for end, words in _WORDS.items() for word in words.split()
}


def turn_end(reason: object) -> TurnEnd:
    """Return what a server's ``finish_reason`` or ``stop_reason`` means.

    Args:
        reason: the value in the answer. SGLang sends an object, whose ``type`` is the reason.
    """
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    if reason is None or reason == "":
        return TurnEnd.UNSAID
    return _ENDS.get(re.sub(r"[\s-]+", "_", str(reason).strip().lower()), TurnEnd.UNKNOWN)


def broke_off(reason: object) -> Iterator[str]:
    """Yield a clause if a server's reason says that the turn broke off."""
    if turn_end(reason) is TurnEnd.BROKEN:
        yield f"the turn broke off: its reason is {reason!r}"[:_SHOWN]
