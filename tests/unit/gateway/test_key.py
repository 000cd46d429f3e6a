"""A server quotes its key everywhere; no header, body, event, log or recording of the gateway
contains it.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path

import pytest

from hyperruntime.errors import GatewayError
from hyperruntime.gateway import Gateway, GatewayConfig, ModelRule, Seat, Upstream
from hyperruntime.secrets.redact import Redactor
from tests.params import first_quick
from tests.unit.secrets.test_redact import KEY, SPELLINGS

CHAT = "/v1/chat/completions"
TEXT_SPELLINGS = {
    name: data
    for name, data in SPELLINGS.items()
    if data.isascii() and not set(data) & set(b'"\n\r\0')
}


class Server:
    """Answers each request with the bytes of ``answer``, and closes the connection."""

    def __init__(self) -> None:
        self.answer, self.given = b"", 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def close(self) -> None:
        """Stop the server."""
        # close() alone would leave the thread in accept()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                data = b""
                while b"\r\n\r\n" not in data and (piece := client.recv(65536)):
                    data += piece
                self.given += 1
                client.sendall(self.answer)


class Rig:
    """A gateway with a log and a recording, in front of a server that answers with fixed bytes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened = ExitStack()
        self._log, self._tape = directory / "log.jsonl", directory / "tape.jsonl"

    @cached_property
    def _server(self) -> Server:
        return self._opened.enter_context(closing(Server()))

    @cached_property
    def _gateway(self) -> Gateway:
        config = GatewayConfig(
            upstreams=(Upstream(name="u", url=self._server.url, key_env="TEST_KEY"),),
            models=(ModelRule(name="m", upstream="u"),),
            log=str(self._log),
            record=str(self._tape),
            tokens=True,
            retries=0,
            deadline_s=30.0,
        )
        return self._opened.enter_context(Gateway(config))

    def ask(self, answer: bytes, *, stream: bool = False) -> bytes:
        """Return all bytes that a client gets if the server sends this answer."""
        self._server.answer, before = answer, self._server.given
        with self._gateway.seat("gen-1", str(self._directory)) as seat:
            got = raw_answer(seat, stream=stream)
            try:
                seat.check()
            except GatewayError as error:
                assert_no_key(str(error).encode())
        assert self._server.given == before + 1
        return got

    def close(self) -> None:
        """Close the gateway and the server, so that the files are complete."""
        self._opened.close()

    def log(self) -> bytes:
        """Close the gateway and return its log."""
        self.close()
        return self._log.read_bytes()

    def assert_nothing_written(self) -> None:
        """Close the gateway and check that its files do not contain the key."""
        for written in (self.log(), self._tape.read_bytes()):
            assert_no_key(written)
            for line in written.splitlines():
                json.loads(line)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Return a gateway whose server has a key."""
    monkeypatch.setenv("TEST_KEY", KEY)
    with closing(Rig(tmp_path)) as made:
        yield made


def raw_answer(seat: Seat, *, stream: bool) -> bytes:
    """Send a request; return all bytes of the answer, its head included."""
    body = json.dumps({"model": "m", "stream": stream}).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nAuthorization: Bearer "
        f"{seat.token}\r\n"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(seat.socket_path)
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data = b""
        while piece := client.recv(65536):
            data += piece
    return data


def assert_no_key(data: bytes) -> None:
    """Check that no spelling of the key is in the data, without the gateway's own code."""
    for name, spelled in SPELLINGS.items():
        assert spelled not in data, name
    joined = b"".join(data.split())
    assert KEY.encode() not in joined
    for undone in (texts(data), texts(data).encode().decode("unicode_escape", "replace")):
        assert KEY not in undone


def texts(data: bytes) -> str:
    """Return all strings in the JSON of an answer, joined."""
    found = []

    def walk(value: object) -> None:
        if isinstance(value, str):
            found.append(value)
        for inner in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            walk(inner)

    for line in data.replace(b"\r\n\r\n", b"\n").splitlines():
        try:
            walk(json.loads(line.removeprefix(b"data:")))
        except ValueError:
            continue
    return "".join(found)


def http(
    body: bytes, *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json"
) -> bytes:
    """Return the bytes of an HTTP response."""
    lines = [b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Content-Length: %d" % len(body)]
    lines += [b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def events(*data: bytes) -> bytes:
    """Return the bytes of an HTTP response that is a stream of events."""
    body = b"".join(b"data: " + one + b"\n\n" for one in data) + b"data: [DONE]\n\n"
    return http(body, kind=b"text/event-stream")


HEADERS = (
    b"x-request-id",
    b"request-id",
    b"openai-processing-ms",
    b"Retry-After",
    b"Set-Cookie",
    b"Location",
    b"WWW-Authenticate",
    b"Server",
    b"Date",
    b"X-Debug",
    b"Content-Language",
    b"ETag",
)


@pytest.mark.parametrize("names", [HEADERS, (b"Content-Type",)], ids=["others", "Content-Type"])
def test_no_header_contains_the_key(rig: Rig, names: tuple[bytes, ...]) -> None:
    for spelled in TEXT_SPELLINGS.values():
        headers = [name + b": " + spelled for name in names]
        answer = http(b"{}", *headers, status=b"400 Bad Request")
        if names == (b"Content-Type",):
            answer = http(b"{}", kind=b"application/json; charset=" + spelled)
        assert_no_key(rig.ask(answer))
    rig.assert_nothing_written()


@pytest.mark.parametrize("key", ["0123456789abcdef0123456789abcdef", "req_A1b2C3d4E5f6G7h8"])
def test_a_key_that_looks_like_a_request_id_is_in_no_header(
    rig: Rig, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", key)
    got = rig.ask(
        http(b"{}", b"x-request-id: " + key.encode(), b"request-id: " + key.upper().encode())
    )
    assert key.encode().lower() not in got.lower()


def test_no_header_contains_a_part_of_the_key(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "0123456789abcdef0123456789abcdee")
    head = rig.ask(
        http(b"{}", b"x-request-id: 0123456789abcdef", b"request-id: 0123456789abcdee")
    ).lower()
    assert b"0123456789" not in head
    told = {
        line.partition(b": ")[2].decode() for line in head.splitlines() if b"request-id" in line
    }
    line = json.loads(rig.log())
    assert told == {line["id"]}, "clients get the gateway's own id; the log also has the upstream's"
    assert line["upstream_id"] == "0123456789abcdef"


def test_known_headers_are_forwarded_in_a_strict_form_and_others_are_dropped(rig: Rig) -> None:
    got = rig.ask(
        http(
            b"{}",
            b"x-request-id: req_011CSHoEeqs5C35K2UUqR7Fy",
            b"openai-processing-ms: 512",
            b"Retry-After: 1.5",
            b"X-Other: 1",
            kind=b"Application/JSON; charset=utf-8",
        )
    )
    head = got.partition(b"\r\n\r\n")[0].splitlines()
    assert head[0] == b"HTTP/1.1 200 OK"
    wanted = {
        b"openai-processing-ms: 512",
        b"Retry-After: 2",
        b"Content-Type: application/json",
    }
    assert wanted <= set(head)
    assert not [line for line in head if line.startswith(b"X-Other")]


def test_the_reason_phrase_and_trailers_are_not_forwarded(rig: Rig) -> None:
    key = KEY.encode()
    assert_no_key(rig.ask(http(b"{}", status=b"418 " + key)))
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-key\r\n\r\n2\r\n{}\r\n0\r\nx-key: "
        + key
    )
    got = rig.ask(chunked + b"\r\n\r\n")
    assert got.endswith(b"{}")
    assert_no_key(got)


@pytest.mark.parametrize(
    ("status", "kind"),
    first_quick(
        (b"200 OK", b"application/json"),
        (b"401 Unauthorized", b"text/html"),
        (b"401 Unauthorized", b"application/json"),
        (b"200 OK", b"application/octet-stream"),
        quick=2,
    ),
)
def test_no_body_contains_the_key(rig: Rig, status: bytes, kind: bytes) -> None:
    for spelled in SPELLINGS.values():
        body = b'{"error": {"message": "got \xc3\xbc ' + spelled + b'"}}'
        assert_no_key(rig.ask(http(body, status=status, kind=kind)))
    rig.assert_nothing_written()


def test_no_large_body_contains_the_key(rig: Rig) -> None:
    for spelled in (KEY.encode(), SPELLINGS["JSON"], SPELLINGS["base64 after 1 bytes"]):
        for where in (b'{"a": "%b%b"}', b'{"a": "%b", "usage": {"prompt_tokens": "%b"}}'):
            assert_no_key(rig.ask(http(where % (b"x, " * 500_000, spelled))))
    rig.assert_nothing_written()


@pytest.mark.parametrize(
    "body",
    [
        {"content": [{"type": "text", "text": KEY[:15]}, {"type": "text", "text": KEY[15:]}]},
        {"choices": [{"logprobs": {"content": [{"token": part, "logprob": -1} for part in KEY]}}]},
        {
            "choices": [
                {
                    "logprobs": {
                        "content": [{"token": "?", "bytes": [byte]} for byte in KEY.encode()]
                    }
                }
            ]
        },
        {
            "choices": [
                {"logprobs": {"content": [{"token": "?", "bytes": list(KEY.encode("utf-16-le"))}]}}
            ]
        },
        {"choices": [{"index": at, "text": KEY[at * 10 : at * 10 + 10]} for at in range(3)]},
        {
            "data": [
                {"b64": b64encode(KEY.encode())[:20].decode()},
                {"b64": b64encode(KEY.encode())[20:].decode()},
            ]
        },
    ],
    ids=["blocks", "tokens", "bytes", "bytes of UTF-16", "choices", "base64"],
)
def test_a_body_with_the_key_in_parts_that_clients_join_is_rejected(rig: Rig, body: object) -> None:
    got = rig.ask(http(json.dumps(body).encode()))
    assert b"502" in got.splitlines()[0]
    assert b"key_in_answer" in got
    rig.log().index(b"key_in_answer")


CODES = ("gzip", "deflate", "br", "zstd", "compress", "gzip, gzip", "rot13", None)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, lambda data: data])
def test_no_compressed_body_contains_the_key(rig: Rig, compress: Callable[[bytes], bytes]) -> None:
    body = compress(b'{"a": "' + KEY.encode() + b'"}')
    for code in CODES:
        headers = [] if code is None else [b"Content-Encoding: " + code.encode()]
        got = rig.ask(http(body, *headers))
        assert body not in got
        assert_no_key(got)
        first = got.splitlines()[0]
        assert b"[redacted]" in got or b"502" in first or b"504" in first


def test_no_event_contains_the_key(rig: Rig) -> None:
    for name, spelled in SPELLINGS.items():
        lines = spelled if "data lines" in name else spelled.replace(b"\n", b"").replace(b"\r", b"")
        assert_no_key(
            rig.ask(events(b'{"choices": [{"delta": {"content": "' + lines + b'"}}]}'), stream=True)
        )
        assert_no_key(rig.ask(events(lines), stream=True))
    rig.assert_nothing_written()


@pytest.mark.parametrize(
    "field", first_quick(b"event: %b", b"%b: x", b"id: %b", b"retry: %b", b": %b", b"%b", quick=2)
)
def test_no_field_of_an_event_contains_the_key(rig: Rig, field: bytes) -> None:
    for spelled in TEXT_SPELLINGS.values():
        body = (field % spelled) + b'\ndata: {"choices": []}\n\n'
        assert_no_key(rig.ask(http(body, kind=b"text/event-stream"), stream=True))
    rig.assert_nothing_written()


@pytest.mark.parametrize("size", [1, 3, 10, 15, 29])
def test_the_joined_texts_of_a_stream_do_not_contain_the_key(rig: Rig, size: int) -> None:
    pieces = [KEY[at : at + size] for at in range(0, len(KEY), size)]
    deltas = [
        json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}).encode()
        for piece in pieces
    ]
    got = rig.ask(events(b'{"choices": [{"delta": {"content": "It is "}}]}', *deltas), stream=True)
    assert_no_key(got)
    assert KEY[:24] not in texts(got), "more than the first 20 characters of the key went out"
    assert b"key_in_answer" in got
    assert not Redactor([KEY]).holds(got)


def test_no_connection_error_contains_the_key(rig: Rig) -> None:
    key = KEY.encode()
    for answer in (
        key + b"\r\n\r\n",
        b"HTTP/1.1 200 " + key,
        b"HTTP/1.1 200 OK\r\n" + key + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + key + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + key + b"\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://" + key + b"/\r\nContent-Length: 0\r\n\r\n",
        http(b"x" * 50 + key, kind=b"text/event-stream")[:-3],
    ):
        got = rig.ask(answer)
        assert_no_key(got)
        assert key[:20] not in got
    assert_no_key(rig.log())
