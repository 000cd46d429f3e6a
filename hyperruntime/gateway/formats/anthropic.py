"""Anthropic's format: messages, and the count of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hyperruntime.gateway.formats.record import Endpoint, Fault, WireFormat
from hyperruntime.gateway.formats.turn_end import broke_off

MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _message(body: Mapping[str, Any]) -> Iterator[Fault]:
    if not isinstance(body.get("content"), list):
        yield "the message has no content"
    yield from broke_off(body.get("stop_reason"))


def _reasons(event: Mapping[str, Any]) -> Iterator[object]:
    delta = event.get("delta")
    yield delta.get("stop_reason") if isinstance(delta, dict) else None
    yield "stop" if event.get("type") == "message_stop" else None


ANTHROPIC = WireFormat(
    name="anthropic",
    endpoints=(
        Endpoint(path=MESSAGES_PATH, faults=_message, reasons=_reasons, error_is_named=True),
        Endpoint(path=COUNT_PATH, is_free=True, error_is_named=True),
    ),
    error=_error,
    key_header="x-api-key",
    # A server refuses a request without a version; the clients of other programs may send none.
    forwarded={"anthropic-version": "2023-06-01", "anthropic-beta": ""},
    url_has_version=False,
    own_models=("claude",),
    input_counts=("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    usage_at=(("usage",), ("message", "usage")),
)
