"""The gateway on real sockets: a scripted model server is the upstream, clients use the gateway's
Unix socket.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from hyperruntime.errors import BudgetExceededError, GatewayError
from hyperruntime.gateway import (
    Budget,
    ClientLimits,
    Gateway,
    GatewayConfig,
    ModelRule,
    Seat,
    Upstream,
)
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
)
from tests.unit.gateway.rig import CHAT, KEY, MESSAGES, Rig, ask, send


def test_an_openai_request_reaches_the_upstream_with_its_key_and_without_the_seat_token(
    start: Callable[..., Rig],
) -> None:
    rig = start(chat("hello"))
    seat = rig.seat()
    status, answer = ask(seat, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "hello")
    (received,) = rig.upstream.received
    assert received.path == CHAT
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert seat.token not in str(received)
    assert received.body == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_an_anthropic_request_gets_the_key_and_the_version_header(
    start: Callable[..., Rig],
) -> None:
    rig = start(message("hello"))
    status, answer = ask(rig.seat(), {"model": "c", "max_tokens": 5, "messages": []}, MESSAGES)
    assert (status, answer["content"][0]["text"]) == (200, "hello")
    (received,) = rig.upstream.received
    assert received.path == MESSAGES
    assert received.headers["x-api-key"] == KEY
    assert received.headers["anthropic-version"] == "2023-06-01"


def test_a_stream_arrives_event_by_event(start: Callable[..., Rig]) -> None:
    came = threading.Event()

    def pieces() -> Iterator[bytes]:
        first, *others = chat_stream("a", "b", "c").pieces
        yield first
        if came.wait(120):
            yield from others

    rig = start(lambda _: Reply(pieces=cast(Any, pieces()), stream=True), deadline_s=60.0)
    seat = rig.seat()
    response = send(seat, {"model": "m", "messages": [], "stream": True})
    first = response.readline()
    came.set()
    rest = response.read()
    assert b'"a"' in first
    assert rest.endswith(b"data: [DONE]\n\n")
    assert rig.upstream.received[0].body["stream_options"] == {"include_usage": True}
    assert b'"choices": []' not in rest, "the client did not ask for the usage"
    assert (seat.spent.input_tokens, seat.spent.output_tokens) == (10, 5)


def test_a_client_that_requests_usage_gets_it(start: Callable[..., Rig]) -> None:
    rig = start(chat_stream("a"))
    body = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    assert b'"choices": []' in send(rig.seat(), body).read()


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "I change the configuration."},
        {"content": "https://example.org/" + "aGVsbG8" * 40},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": '{"path":"/usr/lib/python3/dist-packages'}}
            ]
        },
    ],
    ids=["reasoning", "a long word", "tool call"],
)
def test_an_event_arrives_while_the_upstream_waits_for_its_client(
    start: Callable[..., Rig], delta: dict[str, Any]
) -> None:
    came = threading.Event()
    first, last = (
        event({"choices": [{"index": 0, "delta": one}]}) for one in (delta, {"content": "!"})
    )

    def pieces() -> Iterator[bytes]:
        yield first
        yield last if came.wait(120) else b""

    rig = start(lambda _: Reply(pieces=cast(Any, pieces()), stream=True), deadline_s=60.0)
    response = send(rig.seat(), {"model": "m", "stream": True})
    assert response.readline() + response.readline() == first
    came.set()
    assert response.read() == last


def test_an_anthropic_stream_is_forwarded_unchanged_and_counted(start: Callable[..., Rig]) -> None:
    reply = message_stream("a", "b", output_tokens=7)
    rig = start(reply)
    seat = rig.seat()
    assert send(seat, {"model": "c", "messages": [], "stream": True}, MESSAGES).read() == b"".join(
        reply.pieces
    )
    assert (seat.spent.input_tokens, seat.spent.output_tokens) == (10, 7)


def test_models_are_mapped_by_the_rules_and_others_are_rejected(start: Callable[..., Rig]) -> None:
    rules = (
        ModelRule(name="gpt", upstream="openai", send_as="local-7b"),
        ModelRule(name="x-*", upstream="openai"),
    )
    rig = start(chat("hello"), models=rules)
    seat = rig.seat()
    assert ask(seat, {"model": "gpt"})[0] == ask(seat, {"model": "x-1"})[0] == 200
    assert [received.body["model"] for received in rig.upstream.received] == ["local-7b", "x-1"]
    status, answer = ask(seat, {"model": "dear"})
    assert (status, answer["error"]["type"]) == (403, "model_not_allowed")
    assert len(rig.upstream.received) == 2
    assert [model["id"] for model in ask(seat, b"", "/v1/models")[1]["data"]] == ["gpt"]


def test_a_failing_upstream_is_retried_until_it_answers(start: Callable[..., Rig]) -> None:
    replies = iter(
        [
            json_reply({}, 503),
            json_reply({}, 429, Retry_After="20"),
            Reply(cut=True),
            chat("at last"),
        ]
    )
    asked: list[float] = []

    def script(_: Received) -> Reply:
        asked.append(rig.time())
        return next(replies)

    rig = start(script, deadline_s=5000.0, stall_s=5000.0)
    with rig.time_passing(step_s=10.0):
        status, answer = ask(rig.seat(), {"model": "m"})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "at last")
    assert asked[2] - asked[1] >= 20, "Retry-After was honoured"
    assert rig.lines()[0]["attempts"] == 4


def test_a_stalled_upstream_ends_at_the_deadline(start: Callable[..., Rig]) -> None:
    rig = start(attrs.evolve(chat("late"), wait_s=3000.0), deadline_s=100.0, stall_s=5000.0)
    with rig.time_passing():
        status, answer = ask(rig.seat(), {"model": "m"})
    assert (status, answer["error"]["type"]) == (504, "deadline_exceeded")


def test_a_stream_that_stalls_ends_with_an_error_event(start: Callable[..., Rig]) -> None:
    came = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield chat_stream("a").pieces[0]
        came.wait(120)

    rig = start(
        lambda _: Reply(pieces=cast(Any, pieces()), stream=True), stall_s=100.0, deadline_s=5000.0
    )
    response = send(rig.seat(), {"model": "m", "stream": True})
    first = response.readline()
    with rig.time_passing():
        assert b"upstream_lost" in first + response.read()
    came.set()
    assert rig.lines()[0]["error"].startswith("upstream_lost")


def test_a_stream_that_breaks_off_ends_with_an_error_event_and_is_counted(
    start: Callable[..., Rig],
) -> None:
    rig = start(
        Reply(
            pieces=(event({"choices": [{"delta": {"content": "x" * 400}}]}),), stream=True, cut=True
        )
    )
    seat = rig.seat()
    assert b"upstream_lost" in send(seat, {"model": "m", "stream": True}).read()
    assert seat.spent.output_tokens >= 100
    assert rig.lines()[0]["usage"]["estimated"] is True


def test_a_request_is_cancelled_upstream_when_the_client_disconnects(
    start: Callable[..., Rig],
) -> None:
    rig = start(chat_stream(*"abcdefghij" * 40, pause_s=0.1))
    seat = rig.seat()
    response = send(seat, {"model": "m", "stream": True})
    response.readline()
    response.close()
    wait_for(lambda: rig.upstream.gone == 1)


def test_an_exceeded_budget_rejects_requests_and_raises_on_the_host(
    start: Callable[..., Rig],
) -> None:
    rig = start(chat("hello", 10, 5), budget=Budget(requests=3))
    seat, other = rig.seat(budget=Budget(tokens=15)), rig.seat("gen-2")
    assert ask(seat, {"model": "m"})[0] == 200
    seat.check()
    status, answer = ask(seat, {"model": "m"})
    assert (status, answer["error"]["type"]) == (403, "budget_exceeded")
    with pytest.raises(BudgetExceededError, match="gen-1 is used up: 15 of 15 tokens"):
        seat.check()
    assert [ask(other, {"model": "m"})[0] for _ in range(3)] == [200, 200, 403]
    with pytest.raises(BudgetExceededError, match="the run"):
        other.check()
    assert rig.gateway.spent.requests == 3


def test_a_budget_rejection_is_reported_once_also_to_a_late_listener(
    start: Callable[..., Rig],
) -> None:
    rig = start(chat("hello", 10, 5))
    seat = rig.seat(budget=Budget(requests=1))
    told: list[str] = []
    seat.when_refused(lambda: told.append("before"))
    assert [ask(seat, {"model": "m"})[0] for _ in range(3)] == [200, 403, 403]
    wait_for(lambda: told == ["before"])
    seat.when_refused(lambda: told.append("after"))
    assert told == ["before", "after"]


def test_a_client_that_disconnects_early_is_charged_for_its_request(
    start: Callable[..., Rig],
) -> None:
    rig = start(Reply(pieces=(b"{}",), pause_s=30.0))
    seat = rig.seat(budget=Budget(tokens=900))
    body = json.dumps({"model": "m", "prompt": "x" * 4000}).encode()
    client = raw(seat)
    client.sendall(head_of(seat, len(body)) + body)
    wait_for(lambda: len(rig.upstream.received) == 1)
    client.close()
    wait_for(lambda: len(rig.lines()) == 1)
    assert 1000 <= seat.spent.input_tokens < 1100
    assert rig.lines()[0]["usage"]["estimated"] is True
    assert ask(seat, {"model": "m"})[0] == 403


def test_counting_tokens_is_a_request_without_tokens(start: Callable[..., Rig]) -> None:
    rig = start(json_reply({"input_tokens": 12}))
    seat = rig.seat(budget=Budget(tokens=1))
    for _ in range(2):
        assert ask(seat, {"model": "c"}, "/v1/messages/count_tokens") == (200, {"input_tokens": 12})
    assert (seat.spent.requests, seat.spent.input_tokens) == (2, 0)


def test_the_bytes_held_for_one_seat_are_limited_and_others_are_served(
    start: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.gateway.request.body._DRAIN_S", 0.05)
    rig = start(chat("hello"), limits=ClientLimits(body_bytes=1000, held_bytes=2500))
    seat, other = rig.seat(), rig.seat("gen-2")
    clients = [raw(seat) for _ in range(3)]
    for client in clients:
        client.sendall(head_of(seat, 1000) + b"{" + b" " * 898)
    assert b"too_much_at_once" in read_all(clients.pop())
    body = json.dumps({"model": "m", "pad": "x" * 900}).encode()
    assert ask(seat, body)[0] == 429
    assert ask(other, body)[0] == 200
    for client in clients:
        client.close()
    wait_for(lambda: len(rig.lines()) == 5)
    assert ask(seat, body)[0] == 200, "closed connections must free their bytes"


def test_money_is_computed_from_the_price_table(start: Callable[..., Rig]) -> None:
    rule = ModelRule(name="m", upstream="openai", input_price=2.0, output_price=10.0)
    rig = start(chat("hello", 1_000_000, 100_000), models=(rule,))
    seat = rig.seat(budget=Budget(money=2.5))
    assert ask(seat, {"model": "m"})[0] == 200
    assert seat.spent.money == pytest.approx(3.0)
    assert ask(seat, {"model": "m"})[0] == 403


def test_the_token_of_another_seat_is_rejected(start: Callable[..., Rig]) -> None:
    rig = start(chat("hello"))
    seat, other = rig.seat(), rig.seat("gen-2")
    for token in (other.token, "", "x", "\xff", "x" * 7000, "\xed\xa0\x80", KEY):
        assert ask(seat, {"model": "m"}, token=token)[0] == 401
    assert rig.upstream.received == []
    assert [line["seat"] for line in rig.lines()] == ["gen-1"] * 7
    assert {line["status"] for line in rig.lines()} == {401}


def test_keys_and_tokens_appear_in_no_log_and_no_answer(
    start: Callable[..., Rig], tmp_path: Path
) -> None:
    def leaky(received: Received) -> Reply:
        if received.body.get("stream"):
            return Reply(pieces=(event({"said": received.headers["authorization"]}),), stream=True)
        return json_reply({"error": {"message": f"bad key {KEY}"}}, 401)

    rig = start(leaky, record=str(tmp_path / "tape"))
    seat = rig.seat()
    assert ask(seat, {"model": "m", "user": seat.token})[1] == {
        "error": {"message": "bad key [redacted]"}
    }
    assert KEY.encode() not in send(seat, {"model": "m", "stream": True}).read()
    written = rig.log.read_text() + (tmp_path / "tape").read_text()
    assert KEY not in written
    assert seat.token not in written


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"{", CHAT, 400),
        (b'{"model": "m"}', "/v1/files", 404),
        (b'{"model": "m"}', "/v1/chat/../models", 404),
        (b'{"model": "m"}', "/v1/models", 405),
        (b"x" * 2000, CHAT, 413),
    ],
)
def test_an_invalid_request_is_rejected_and_logged(
    start: Callable[..., Rig], body: bytes, path: str, status: int
) -> None:
    rig = start(chat("hello"), limits=ClientLimits(body_bytes=1000))
    assert ask(rig.seat(), body, path)[0] == status
    assert rig.upstream.received == []
    assert rig.lines()[0]["status"] == status


def head_of(seat: Seat, length: int) -> bytes:
    """Return the head of a request with a body of this length."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer "
        f"{seat.token}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode()


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after 60 s."""
    assert wait_until(holds, 60, 0.02)


def raw(seat: Seat) -> socket.socket:
    """Return a new connection to a seat's socket."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(seat.socket_path)
    return client


def test_slow_clients_are_dropped_and_others_are_served(start: Callable[..., Rig]) -> None:
    rig = start(
        chat("hello"), limits=ClientLimits(client_s=100.0, connections=20), deadline_s=5000.0
    )
    seat, other = rig.seat(), rig.seat("gen-2")
    clients = [raw(seat) for _ in range(20)]
    head = head_of(seat, 100)
    for index, client in enumerate(clients):
        client.sendall(head[:50] if index % 2 else head + b"{")
    assert ask(other, {"model": "m"})[0] == 200, "another container must be served in the meantime"
    with rig.time_passing():
        answers = [read_all(client) for client in clients]
    assert all(b"slow_client" in answer for answer in answers[::2])
    assert answers[1::2] == [b""] * 10
    assert ask(seat, {"model": "m"})[0] == 200


def read_all(client: socket.socket) -> bytes:
    """Return all bytes until the other side closes the connection."""
    data = b""
    try:
        while piece := client.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    client.close()
    return data


def test_connections_beyond_the_limit_of_a_seat_are_closed(start: Callable[..., Rig]) -> None:
    rig = start(chat("hello"), limits=ClientLimits(connections=5))
    seat, other = rig.seat(), rig.seat("gen-2")
    clients = [raw(seat) for _ in range(30)]
    assert ask(other, {"model": "m"})[0] == 200
    assert wait_until(lambda: sum(map(is_closed, clients)) >= 25, 60)
    assert sum(map(is_closed, clients)) == 25
    for client in clients:
        client.close()


def is_closed(client: socket.socket) -> bool:
    """Return whether the other side closed the connection."""
    client.settimeout(0.01)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_a_flood_of_pipelined_requests_is_dropped(start: Callable[..., Rig]) -> None:
    rig = start(chat("hello"))
    client = raw(rig.seat())
    requests = b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n" * 1_000_000
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(requests)
    client.close()


@pytest.mark.parametrize(
    "junk", [b"\x00" * 5000, b"GET / HTTP/9.9\r\n\r\n", b"G" * 100_000, b"\r\n" * 5000]
)
def test_invalid_http_is_answered_with_400_or_dropped(
    start: Callable[..., Rig], junk: bytes
) -> None:
    rig = start(chat("hello"), limits=ClientLimits(client_s=100.0))
    seat = rig.seat()
    client = raw(seat)
    client.sendall(junk)
    with rig.time_passing():
        answer = read_all(client)
    assert answer == b"" or b" 400 " in answer.splitlines()[0]
    assert ask(seat, {"model": "m"})[0] == 200


def test_at_most_concurrency_requests_run_at_the_same_time(start: Callable[..., Rig]) -> None:
    running, most = 0, 0

    def script(_: Received) -> Reply:
        nonlocal running, most
        running += 1
        most = max(most, running)

        def pieces() -> Iterator[bytes]:
            nonlocal running
            yield from chat_stream("x").pieces
            running -= 1

        return Reply(pieces=cast(Any, pieces()), stream=True, wait_s=0.05)

    rig = start(script, concurrency=3)
    seat = rig.seat()
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda _: send(seat, {"model": "m", "stream": True}).read(), range(12))
        )
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert most <= 3


def test_a_recording_is_replayed_without_an_upstream(
    start: Callable[..., Rig], tmp_path: Path
) -> None:
    replies = iter([chat("one"), chat("two"), chat_stream("a", "b")])
    rig = start(lambda _: next(replies), record=str(tmp_path / "tape"))
    seat = rig.seat()
    bodies = [{"model": "m"}, {"model": "m"}, {"model": "m", "stream": True}]
    live = [send(seat, body).read() for body in bodies]
    rig.gateway.close()
    config = GatewayConfig(
        upstreams=(Upstream(name="r", url=f"replay:{tmp_path}/tape"),),
        models=(ModelRule(name="*", upstream="r"),),
    )
    with Gateway(config) as gateway:
        played = gateway.seat("gen-1", str(tmp_path))
        assert [send(played, body).read() for body in bodies] == live
        assert played.spent.output_tokens == 15
        assert ask(played, bodies[0])[0] == 404


def test_closing_a_seat_or_the_gateway_closes_its_connections(start: Callable[..., Rig]) -> None:
    rig = start(chat("hello"))
    seat, other = rig.seat(), rig.seat("gen-2")
    client = raw(seat)
    seat.close()
    assert not Path(seat.socket_path).exists()
    assert read_all(client) == b""
    assert ask(other, {"model": "m"})[0] == 200
    threads = threading.active_count()
    rig.gateway.close()
    rig.gateway.close()
    assert threading.active_count() < threads
    with pytest.raises(GatewayError, match="closed"):
        rig.gateway.seat("gen-3", str(rig.directory))


def test_a_seat_works_below_a_long_path(start: Callable[..., Rig], tmp_path: Path) -> None:
    rig = start(chat("hello"))
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    seat = rig.gateway.seat("gen-1", str(deep))
    assert Path(seat.socket_path).is_socket()


def test_the_log_has_one_line_per_exchange(start: Callable[..., Rig]) -> None:
    rig = start(chat("hello", 11, 3))
    ask(rig.seat("gen-7"), {"model": "m"})
    (line,) = rig.lines()
    assert (line["seat"], line["model"], line["status"], line["attempts"]) == ("gen-7", "m", 200, 1)
    assert line["usage"] == {"input_tokens": 11, "output_tokens": 3, "estimated": False}
    assert 0 < line["first_byte_s"] <= line["duration_s"] < 60


@pytest.mark.parametrize("stream", [False, True])
def test_generated_tokens_are_logged_with_their_log_probabilities_on_request(
    start: Callable[..., Rig], *, stream: bool
) -> None:
    tokens = [{"token": "he", "logprob": -0.5}, {"token": "llo", "logprob": -0.1}]
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if stream:
        deltas = [
            {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [token]}}]}
            for token in tokens
        ]
        reply = Reply(
            pieces=(*map(event, deltas), event({"choices": [], "usage": usage})), stream=True
        )
    else:
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "logprobs": {"content": tokens}}
        reply = json_reply({"choices": [choice], "usage": usage})
    rig = start(reply, tokens=True)
    send(rig.seat(), {"model": "m", "stream": stream}).read()
    assert rig.upstream.received[0].body["logprobs"] is True
    (line,) = rig.lines()
    assert line["generated"]["choices"] == [
        {"index": 0, "tokens": ["he", "llo"], "logprobs": [-0.5, -0.1]}
    ]


def test_a_stream_past_its_deadline_ends_with_an_error_event(start: Callable[..., Rig]) -> None:
    rig = start(chat_stream(*"abcdefghij" * 1000, pause_s=0.05), deadline_s=5.0, stall_s=5000.0)
    response = send(rig.seat(), {"model": "m", "stream": True})
    first = response.readline()
    with rig.time_passing(step_s=1.0):  # the client has 2 s more to read the event
        data = first + response.read()
    assert data.startswith(b"data: ")
    assert b"upstream_lost" in data


def test_a_client_that_reads_nothing_does_not_block_other_seats(start: Callable[..., Rig]) -> None:
    rig = start(
        Reply(pieces=tuple(event("x" * 100_000) for _ in range(300)), stream=True),
        deadline_s=100.0,
        concurrency=1,
    )
    seat, other = rig.seat(), rig.seat("gen-2")
    body = json.dumps({"model": "m", "stream": True})
    client = raw(seat)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {seat.token}\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    wait_for(lambda: len(rig.upstream.received) == 1)
    with rig.time_passing():
        assert send(other, {"model": "m", "stream": True}).status in (200, 504)
    client.close()


def test_a_client_that_upgrades_the_protocol_is_dropped(start: Callable[..., Rig]) -> None:
    client = raw(start(chat("hello")).seat())
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(
            b"GET /v1/models HTTP/1.1\r\nHost: g\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
            + b"x" * 50_000_000
        )
    client.close()
