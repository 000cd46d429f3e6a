"""OpenAI's responses through the gateway, asked for with OpenAI's package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import openai
import pytest

from hyperruntime.errors import BudgetExceededError, GatewayError
from hyperruntime.gateway import Budget, Seat
from tests.doubles.upstream import Received, Reply, event, response, response_stream
from tests.unit.gateway.rig import KEY, Rig, ask, send

RESPONSES = "/v1/responses"
DELTA = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
}


@contextmanager
def client(seat: Seat) -> Iterator[openai.OpenAI]:
    """Open a client of a seat's socket."""
    # its name changed
    httpx = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
    transport = httpx.HTTPTransport(uds=seat.socket_path)
    with (
        openai.DefaultHttpxClient(transport=transport) as http,
        openai.OpenAI(
            base_url="http://g/v1", api_key=seat.token, http_client=http, max_retries=0
        ) as opened,
    ):
        yield opened


def served(received: Received) -> Reply:
    return response_stream("hel", "lo") if received.body.get("stream") else response("hello")


def test_a_response_is_passed_through_and_counted(start: Callable[..., Rig]) -> None:
    rig = start(served)
    seat = rig.seat()
    with client(seat) as opened:
        answer = opened.responses.create(
            model="m", input="hi", reasoning={"effort": "low"}, store=False
        )
    assert (answer.output_text, answer.status) == ("hello", "completed")
    assert (seat.spent.requests, seat.spent.input_tokens, seat.spent.output_tokens) == (1, 10, 5)
    (received,) = rig.upstream.received
    assert received.path == RESPONSES
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body == {
        "model": "m",
        "input": "hi",
        "reasoning": {"effort": "low"},
        "store": False,
    }
    seat.check()


def test_a_streamed_response_is_passed_through_event_by_event_and_counted(
    start: Callable[..., Rig],
) -> None:
    rig = start(served)
    seat = rig.seat()
    with client(seat) as opened:
        events = list(opened.responses.create(model="m", input="hi", stream=True))
    assert (
        "".join(each.delta for each in events if each.type == "response.output_text.delta")
        == "hello"
    )
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert (seat.spent.input_tokens, seat.spent.output_tokens) == (10, 5)
    assert rig.lines()[0]["usage"]["estimated"] is False
    assert rig.upstream.received[0].body == {"model": "m", "input": "hi", "stream": True}, (
        "no option is added"
    )
    reply = response_stream("hel", "lo")
    body = {"model": "m", "input": "hi", "stream": True}
    assert send(seat, body, RESPONSES).read() == b"".join(reply.pieces), "byte for byte"
    seat.check()


def test_a_budget_and_the_allow_list_apply_to_responses(start: Callable[..., Rig]) -> None:
    rig = start(served)
    seat = rig.seat(budget=Budget(tokens=15))
    with client(seat) as opened:
        with pytest.raises(openai.PermissionDeniedError, match="'dear' is not allowed"):
            opened.responses.create(model="dear", input="hi")
        opened.responses.create(model="m", input="hi")
        with pytest.raises(openai.PermissionDeniedError, match="budget"):
            opened.responses.create(model="m", input="hi")
    with pytest.raises(BudgetExceededError, match="15 of 15 tokens"):
        seat.check()
    assert len(rig.upstream.received) == 1


def test_a_response_in_the_background_is_refused_by_name(start: Callable[..., Rig]) -> None:
    rig = start(served)
    with (
        client(rig.seat()) as opened,
        pytest.raises(openai.BadRequestError, match="'background' is not supported"),
    ):
        opened.responses.create(model="m", input="hi", background=True)
    assert rig.upstream.received == []


def test_a_response_that_holds_the_key_is_cut_or_refused(start: Callable[..., Rig]) -> None:
    replies = iter([response(f"the key is {KEY}"), response_stream(KEY[:9], KEY[9:17], KEY[17:])])
    rig = start(lambda _: next(replies))
    seat = rig.seat()
    assert (
        ask(seat, {"model": "m"}, RESPONSES)[1]["output"][0]["content"][0]["text"]
        == "the key is [redacted]"
    )
    stream = send(seat, {"model": "m", "stream": True}, RESPONSES).read()
    assert KEY[17:].encode() not in stream
    assert b"key_in_answer" in stream


def test_a_key_that_one_output_of_a_stream_spells_between_the_events_of_another_is_found(
    start: Callable[..., Rig],
) -> None:
    parts = [
        event({**DELTA, "delta": part}, "response.output_text.delta")
        for part in (KEY[:9], KEY[9:17], KEY[17:])
    ]
    other = event(
        {**DELTA, "output_index": 1, "item_id": "msg_2", "delta": "words"},
        "response.output_text.delta",
    )
    pieces = tuple(piece for part in parts for piece in (part, other))
    rig = start(Reply(pieces=pieces, stream=True))
    stream = send(rig.seat(), {"model": "m", "stream": True}, RESPONSES).read()
    assert KEY[17:].encode() not in stream
    assert b"key_in_answer" in stream


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_of_a_response_that_broke_off_raises_an_error_and_is_not_blamed_on_the_agent(
    start: Callable[..., Rig], *, cut: bool
) -> None:
    failed = {
        "type": "response.failed",
        "response": {"status": "failed", "error": {"code": "server_error"}},
    }
    last = event(failed, "response.failed")
    begun = response_stream("hel", "lo").pieces[:2]
    rig = start(Reply(pieces=begun if cut else (*begun, last), stream=True, cut=cut))
    seat = rig.seat()
    with client(seat) as opened:
        stream = opened.responses.create(model="m", input="hi", stream=True)
        if cut:
            with pytest.raises(openai.APIError, match="broke off"):
                list(stream)
        else:
            assert list(stream)[-1].type == "response.failed"
    assert rig.has_logged(1)
    with pytest.raises(GatewayError, match="upstream_lost" if cut else "upstream_broken"):
        seat.check()


def test_an_error_of_the_gateway_in_a_stream_of_a_response_has_the_form_of_responses(
    start: Callable[..., Rig],
) -> None:
    rig = start(Reply(pieces=response_stream("a").pieces[:2], stream=True, cut=True))
    last = (
        send(rig.seat(), {"model": "m", "stream": True}, RESPONSES)
        .read()
        .strip()
        .split(b"\n\n")[-1]
    )
    name, data = last.split(b"\n")
    assert name == b"event: error"
    said = json.loads(data.removeprefix(b"data: "))
    assert (said["type"], said["code"], said["param"]) == ("error", "upstream_lost", None)
