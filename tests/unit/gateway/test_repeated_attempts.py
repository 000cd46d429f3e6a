"""The usage of a request that was asked for again: what the last attempt used, and what earlier
ones report.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import pytest

from hyperruntime.gateway import Budget
from hyperruntime.host.process import wait_until
from tests.doubles.upstream import (
    Received,
    Reply,
    chat,
    chat_stream,
    event,
    json_reply,
    message,
    message_stream,
    response,
    response_stream,
)
from tests.unit.gateway.rig import CHAT, MESSAGES, Rig, UnixConnection, send

COMPLETIONS, EMBEDDINGS, RESPONSES = "/v1/completions", "/v1/embeddings", "/v1/responses"
TEXT = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
USAGE = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}
TEXT_STREAM = Reply(
    pieces=(event(TEXT), event({"choices": [], **USAGE}), event("[DONE]")), stream=True
)
WHOLE = {
    CHAT: chat("a"),
    COMPLETIONS: json_reply({**TEXT, **USAGE}),
    EMBEDDINGS: json_reply({"data": [], "usage": {"prompt_tokens": 15}}),
    MESSAGES: message("a"),
    RESPONSES: response("a"),
}
STREAMS = {
    CHAT: chat_stream("a"),
    COMPLETIONS: TEXT_STREAM,
    MESSAGES: message_stream("a"),
    RESPONSES: response_stream("a"),
}
BUSY = json_reply({"error": {"message": "busy"}}, 503)
BILLED = json_reply(
    {
        "error": {"code": 502, "message": "it broke"},
        "usage": {"input_tokens": 70, "output_tokens": 30},
    }
)
UNBILLED = json_reply({"error": {"code": 502, "message": "it broke"}})
LOST = {
    "type": "error",
    "error": {"code": 502, "message": "it broke"},
    "usage": {"input_tokens": 100},
}
FAILED = {
    "a status": (BUSY, 0),
    "an error of status 200": (UNBILLED, 0),
    "an error that reports its usage": (BILLED, 100),
    "a lost connection": (attrs.evolve(BILLED, cut=True), 0),
    "an event that reports its usage": (Reply(pieces=(event(LOST),), stream=True), 100),
}
CASES = [
    pytest.param(path, reply, failed, billed, id=f"{path}, {kind}, {name}")
    for kind, replies in (("whole", WHOLE), ("stream", STREAMS))
    for path, reply in replies.items()
    for name, (failed, billed) in FAILED.items()
    if (kind == "stream" or not failed.stream) and (path == CHAT or failed is BUSY)
]


@pytest.mark.parametrize(("path", "reply", "failed", "billed"), CASES)
def test_a_request_that_was_asked_for_again_is_counted_and_reaches_its_budget(
    start: Callable[..., Rig], path: str, reply: Reply, failed: Reply, billed: int
) -> None:
    replies = iter([failed, reply])
    rig = start(lambda _: next(replies))
    seat = rig.seat(budget=Budget(tokens=15))
    asked = {"model": "c" if path == MESSAGES else "m", "stream": reply.stream}
    answer = send(seat, asked, path)
    assert (answer.status, len(answer.read()) > 0) == (200, True)
    assert rig.has_logged(1)
    (line,) = rig.lines()
    assert line["attempts"] == 2
    assert line["usage"]["input_tokens"] + line["usage"]["output_tokens"] == 15 + billed
    assert line["usage"]["estimated"] is False
    assert seat.spent.input_tokens + seat.spent.output_tokens == 15 + billed
    assert rig.gateway.spent == seat.spent
    refused = send(seat, asked, path)
    assert (refused.status, json.loads(refused.read())["error"]["type"]) == (403, "budget_exceeded")


@pytest.mark.parametrize("failed", [BUSY, UNBILLED], ids=["a status", "an error of status 200"])
def test_a_client_that_leaves_during_the_second_attempt_is_charged_for_its_request(
    start: Callable[..., Rig], failed: Reply
) -> None:
    def script(_: Received) -> Reply:
        return (
            failed if len(rig.upstream.received) == 1 else attrs.evolve(chat("late"), wait_s=100.0)
        )

    rig = start(script)
    seat = rig.seat()
    client = UnixConnection(seat.socket_path)
    body = json.dumps({"model": "m", "prompt": "x" * 4000})
    client.request("POST", CHAT, body=body, headers={"Authorization": f"Bearer {seat.token}"})
    assert wait_until(lambda: len(rig.upstream.received) == 2, 60)
    client.close()
    assert rig.has_logged(1)
    assert 1000 <= seat.spent.input_tokens < 1100
    assert rig.lines()[0]["usage"]["estimated"] is True


def test_attempts_without_any_answer_cost_nothing(start: Callable[..., Rig]) -> None:
    replies = iter([UNBILLED, attrs.evolve(BUSY, cut=True)])
    rig = start(lambda _: next(replies), retries=1)
    seat = rig.seat()
    assert send(seat, {"model": "m"}).status == 502
    assert rig.has_logged(1)
    assert (seat.spent.requests, seat.spent.input_tokens, seat.spent.output_tokens) == (1, 0, 0)
