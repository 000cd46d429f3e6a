"""Messages of a side that is not trusted: read or refused, and never longer than the event loop can
wait.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from hyperruntime.errors import ClusterError
from hyperruntime.json_values import parse_json_slowly
from hyperruntime.wire import messages
from hyperruntime.wire.messages import PeerFaultError, error_of_json, pack, unpack


def framed(header: bytes) -> bytes:
    return struct.pack(">I", len(header)) + header


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b'{"a":' * 100_000, "not a JSON object"),
        (b"[" * 400_000, "more than 262144"),
        (b'{"id":' + b"9" * 5000 + b"}", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (
            b'{"a":[' + b"[]," * (messages.MOST_VALUES // 2) + b"1]}",
            "JSON values, more than 262144",
        ),
        (b'{"a":[' + (b"9" * 4000 + b",") * 1100 + b"1]}", "bytes of numbers, more than 4194304"),
        (b'{"a":"' + b"a" * messages.MOST_HEADER_BYTES + b'"}', "bytes, more than 33554432"),
    ],
    ids=[
        "deep",
        "brackets",
        "long number",
        "list",
        "no text",
        "many values",
        "long numbers",
        "large",
    ],
)
def test_a_header_that_is_invalid_or_long_to_parse_is_refused(header: bytes, why: str) -> None:
    with pytest.raises(PeerFaultError, match=why):
        unpack(framed(header))


def test_this_side_sends_no_header_that_the_other_side_refuses() -> None:
    with pytest.raises(
        ClusterError, match=r"a message between head and node has a header of .* send less at once"
    ):
        pack({"a": [[]] * messages.MOST_VALUES})
    body = b"x" * (1 << 20)
    assert unpack(pack({"a": "[" * 300_000}, body)) == ({"a": "[" * 300_000}, body)


def test_an_error_of_the_other_side_is_cut_and_cannot_pretend_to_be_a_fault() -> None:
    fields = {f"f{number}": "y" * 100_000 for number in range(1000)} | {
        "__notes__": "x",
        "no name": 1,
    }
    error = error_of_json({"class": "SpecError", "text": "x" * 1_000_000, "fields": fields})
    assert len(str(error)) < 70_000
    assert len(vars(error)) <= 32
    assert "__notes__" not in vars(error)
    assert (
        type(error_of_json({"class": "PeerFaultError", "text": "", "fields": {}}))
        is not PeerFaultError
    )
    deep = json.loads('{"a":' * 900 + "1" + "}" * 900)
    assert "cannot be read: dict" in str(error_of_json(deep))


def test_a_large_text_can_be_parsed_while_other_threads_run() -> None:
    value: dict[str, Any] = {"a": [1, -2.5, None, True, "\u00e9", {"b": []}] * 3}
    assert parse_json_slowly(json.dumps(value)) == value
    for text in ("", "[1,]", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            parse_json_slowly(text)
