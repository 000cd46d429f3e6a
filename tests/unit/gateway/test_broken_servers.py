"""Answers of broken model servers: asked for again, and never blamed on the agent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs
import pytest

from hyperruntime.errors import GatewayError
from tests.doubles.server_errors import TOO_LONG, Error
from tests.doubles.upstream import Reply, chat, chat_stream, event, json_reply, message_stream
from tests.unit.gateway.rig import MESSAGES, Rig, ask, send

ASKED = {"model": "m", "messages": []}
HTML = Reply(pieces=(b"<html>Welcome to nginx</html>",), headers={"Content-Type": "text/html"})


def said(message: object, reason: object = "stop") -> Reply:
    return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": reason}]})


# One of each way to be broken; test_judgement.py has the others.
BROKEN = {
    "a status": json_reply({"error": {"message": "it broke"}}, 500),
    "HTML": HTML,
    "nothing": Reply(pieces=(b"",)),
    "an event stream": chat_stream("hello"),
    "an error of code 429": json_reply({"error": {"code": 429, "message": "slow down"}}),
    "an aborted turn": said({"role": "assistant", "content": "half"}, "abort"),
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_asked_for_again(start: Callable[..., Rig], reply: Reply) -> None:
    replies = iter([reply, reply, chat("at last")])
    rig = start(lambda _: next(replies))
    seat = rig.seat()
    assert ask(seat, ASKED)[1]["choices"][0]["message"]["content"] == "at last"
    seat.check()
    assert rig.lines()[0]["attempts"] == 3


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_a_server_that_stays_broken_is_not_blamed_on_the_agent(
    start: Callable[..., Rig], reply: Reply
) -> None:
    rig = start(reply, retries=1)
    seat = rig.seat()
    response = send(seat, ASKED)
    assert response.read() == b"".join(reply.pieces), "the client gets what the server said"
    assert response.headers["x-should-retry"] == "false"
    with pytest.raises(
        GatewayError, match=r"upstream 'openai' failed after 2 attempts: upstream_broken: .+"
    ):
        seat.check()


def test_a_request_that_the_server_refuses_is_blamed_on_the_agent(
    start: Callable[..., Rig],
) -> None:
    replies = iter(
        [json_reply({"error": {"message": "bad"}}, 400), json_reply({"error": {"code": 400}})]
    )
    rig = start(lambda _: next(replies))
    seat = rig.seat()
    for _ in range(2):
        ask(seat, ASKED)
        seat.check()
    assert [line["attempts"] for line in rig.lines()] == [1, 1]


@pytest.mark.parametrize(
    "error", [TOO_LONG[name] for name in ("llama.cpp, 500", "Ollama, 500", "TGI", "Gemini")]
)
def test_a_full_context_is_neither_retried_nor_blamed_on_the_server(
    start: Callable[..., Rig], error: Error
) -> None:
    rig = start(json_reply(error[1], error[0]))
    seat = rig.seat()
    assert ask(seat, ASKED)[0] == error[0]
    assert len(rig.upstream.received) == 1
    seat.check()


def test_a_server_that_failed_before_the_deadline_is_not_blamed_on_the_agent(
    start: Callable[..., Rig],
) -> None:
    replies = iter([json_reply({}, 503), attrs.evolve(chat("late"), wait_s=3000.0)])
    rig = start(lambda _: next(replies), deadline_s=100.0, stall_s=5000.0)
    seat = rig.seat()
    with rig.time_passing():
        assert ask(seat, ASKED)[0] == 504
    with pytest.raises(GatewayError, match="not answered within its deadline"):
        seat.check()


STREAMED = {**ASKED, "stream": True}
HALF = event({"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]})
ABORTED = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]})
LOST = event({"error": {"message": "the engine is dead", "code": 500}})
OFF = {
    "no reason": (HALF, event("[DONE]")),
    "an abort": (HALF, ABORTED, event("[DONE]")),
    "an error": (HALF, LOST, event("[DONE]")),
}


@pytest.mark.parametrize("pieces", OFF.values(), ids=OFF)
def test_a_stream_that_broke_off_passes_unchanged_and_is_not_blamed_on_the_agent(
    start: Callable[..., Rig], pieces: tuple[bytes, ...]
) -> None:
    rig = start(Reply(pieces=pieces, stream=True))
    seat = rig.seat()
    assert send(seat, STREAMED).read() == b"".join(pieces)
    assert rig.has_logged(1)
    with pytest.raises(GatewayError, match="upstream_broken"):
        seat.check()


def test_an_anthropic_stream_that_broke_off_is_not_blamed_on_the_agent(
    start: Callable[..., Rig],
) -> None:
    whole = message_stream("a", "b")
    replies = iter([whole, attrs.evolve(whole, pieces=whole.pieces[:3])])
    rig = start(lambda _: next(replies))
    seat = rig.seat()
    send(seat, {**STREAMED, "model": "c"}, MESSAGES).read()
    assert rig.has_logged(1)
    seat.check()
    send(seat, {**STREAMED, "model": "c"}, MESSAGES).read()
    assert rig.has_logged(2)
    with pytest.raises(GatewayError, match="upstream_broken"):
        seat.check()


@pytest.mark.parametrize(
    "begun",
    [
        HTML,
        Reply(pieces=(b"",), stream=True),
        Reply(pieces=(LOST,), stream=True),
        Reply(pieces=(b"data: {",), stream=True, cut=True),
    ],
    ids=["HTML", "no event", "an error", "a lost connection"],
)
def test_a_stream_that_fails_before_its_first_event_is_asked_for_again(
    start: Callable[..., Rig], begun: Reply
) -> None:
    replies = iter([begun, chat_stream("at last")])
    rig = start(lambda _: next(replies))
    seat = rig.seat()
    response = send(seat, STREAMED)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert b"at last" in response.read()
    seat.check()
    assert rig.lines()[0]["attempts"] == 2


def test_a_comment_before_the_first_event_arrives_at_once(start: Callable[..., Rig]) -> None:
    came = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b": processing\n\n"
        if came.wait(120):
            yield from chat_stream("a").pieces

    response = send(
        start(Reply(pieces=cast(Any, pieces()), stream=True), deadline_s=60.0).seat(), STREAMED
    )
    assert response.readline() == b":\n"
    came.set()
    assert b'"a"' in response.read()


def test_a_stream_that_stalls_before_its_first_event_is_asked_for_again(
    start: Callable[..., Rig],
) -> None:
    replies = iter([attrs.evolve(chat_stream("late"), pause_s=3000.0), chat_stream("at last")])
    rig = start(lambda _: next(replies), stall_s=100.0, deadline_s=5000.0)
    seat = rig.seat()
    with rig.time_passing():
        assert b"at last" in send(seat, STREAMED).read()
    assert json.loads(rig.log.read_text())["attempts"] == 2
