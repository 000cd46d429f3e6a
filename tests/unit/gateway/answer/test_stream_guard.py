"""Streams: the guard finds keys that are split over events, and holds events back only as long as
necessary.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.gateway.answer.screen import StreamGuard, screen_event
from hyperruntime.gateway.answer.sse import event_data
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.secrets.redact import Redactor
from tests.doubles.upstream import event

KEY = "sk-proj-Zk3vQ8xYw1LrTn5Bd7Hs0MfJa2Gc9Ue4"
# characters of the key, in any spelling, that may be forwarded before the guard finds it
AHEAD = 20
WIDE_KEY = "sk-proj-" + "".join(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"[at * 7 % 62]
    for at in range(156)
)


def delta(text: str, index: int = 0) -> bytes:
    """Return an event of a chat completion stream."""
    kind = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "model": "some-model-7b",
    }
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": text},
        "finish_reason": None,
    }
    return event({**kind, "choices": [choice]})


def block(text: str) -> bytes:
    """Return an event of a messages stream."""
    data = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }
    return event(data, "content_block_delta")


def tool(text: str) -> bytes:
    """Return an event with the arguments of a tool call."""
    return event(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]},
                }
            ]
        }
    )


def logprob(text: str) -> bytes:
    """Return an event that contains only the bytes of a token."""
    content = [{"token": "", "logprob": -1.5, "bytes": list(text.encode())}]
    return event({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": content}}]})


class Guard:
    """A stream guard that screens each event first."""

    def __init__(self, key: str = KEY) -> None:
        self._redactor = Redactor([key])
        self._guard = StreamGuard(self._redactor)
        self.rest = self._guard.rest

    def feed(self, one: bytes) -> list[bytes]:
        return self._guard.feed(screen_event(one, self._redactor))


KINDS: dict[str, Callable[[str], bytes]] = {
    "chat": delta,
    "message": block,
    "tool": tool,
    "logprobs": logprob,
    "text": event,
}


def passed(events: Iterable[bytes], key: str = KEY) -> tuple[list[bytes], bool]:
    """Return the events that a guard forwards, and whether it ended the stream."""
    guard, out = Guard(key), []
    try:
        for one in events:
            out += guard.feed(one)
    except RequestRefusedError as error:
        return out, error.kind == "key_in_answer"
    return out + guard.rest(), False


def all_text(events: Iterable[bytes]) -> str:
    """Return all strings of some events, joined."""
    return "".join(text for one in events for text in leaves(event_data(one)))


def contents(deltas: Iterable[bytes]) -> str:
    """Return the contents of a chat's events, joined."""
    messages: Iterable[Any] = map(event_data, deltas)
    return "".join(message["choices"][0]["delta"]["content"] for message in messages)


def squeezed(text: str) -> str:
    """Return the letters and digits of a text."""
    return "".join(filter(str.isalnum, text))


def leaves(data: Any) -> list[str]:
    """Return the strings in JSON."""
    if isinstance(data, str):
        return [data]
    if isinstance(data, list) and data and all(isinstance(item, int) for item in data):
        return [bytes(data).decode()]
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else []
    return [text for value in inner for text in leaves(value)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 39])
def test_a_key_that_is_split_over_events_ends_the_stream(kind: str, size: int) -> None:
    pieces = [KEY[at : at + size] for at in range(0, len(KEY), size)]
    out, ended = passed(map(KINDS[kind], ["Here it is: ", *pieces, " and more"]))
    assert ended
    assert squeezed(KEY)[: AHEAD + 1] not in squeezed(all_text(out)), (
        "more than the first characters of the key went out"
    )


@pytest.mark.parametrize(
    "spelled",
    [
        "".join(f"%{ord(c):02x}" for c in KEY),
        KEY.encode().hex(),
        "".join(f"\\u{ord(c):04x}" for c in KEY),
    ],
    ids=["URL", "hexadecimal", "JSON in a text"],
)
@pytest.mark.parametrize("size", [1, 5, 7])
def test_a_spelled_key_split_over_events_ends_the_stream(spelled: str, size: int) -> None:
    out, ended = passed(
        map(delta, ["It is ", *[spelled[at : at + size] for at in range(0, len(spelled), size)]])
    )
    assert ended
    assert len(contents(out)) <= len("It is ") + len(spelled) * 0.55 + size, (
        "more than about half of the spelled key went out"
    )


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([char + " \u2028\t" * 40 for char in WIDE_KEY], 1),
        ([WIDE_KEY.encode().hex(" ")[at : at + 48] for at in range(0, 492, 48)], 2),
        (list(WIDE_KEY.encode().hex(" ")), 2),
        ([f"{byte}, " for byte in WIDE_KEY.encode()], 3),
        (base64.encodebytes(WIDE_KEY.encode()).decode().splitlines(True), 4 / 3),
        (list(base64.encodebytes(WIDE_KEY.encode()).decode()), 4 / 3),
        (list(json.dumps("\0".join(WIDE_KEY))), 1),
    ],
    ids=[
        "blanks",
        "hex dump",
        "hex dump by characters",
        "numbers",
        "base64 lines",
        "base64 by characters",
        "UTF-16",
    ],
)
def test_only_the_beginning_of_a_key_goes_out_if_other_characters_separate_its_parts(
    lines: list[str], part: float
) -> None:
    out, ended = passed(map(delta, lines), WIDE_KEY)
    assert ended
    shown = squeezed(contents(out))
    assert len(shown.replace("u0000", "")) <= AHEAD * part + 4, (
        "more than the beginning of the key went out"
    )


def test_the_choices_of_a_stream_are_joined_separately() -> None:
    halves = [KEY[:20], KEY[20:]]
    mixed = [
        delta(text, index)
        for pair in zip(halves, ["all is", " well"], strict=True)
        for index, text in enumerate(pair)
    ]
    assert passed(mixed)[1]


def test_a_key_in_several_texts_of_one_event_ends_the_stream() -> None:
    content = [{"token": part, "logprob": -0.5} for part in (KEY[:9], KEY[9:])]
    assert passed([event({"choices": [{"index": 0, "logprobs": {"content": content}}]})]) == (
        [],
        True,
    )


def test_a_key_split_over_fields_that_clients_do_not_join_is_found() -> None:
    parts = [event({"id": KEY[:20], "choices": []}), event({"id": KEY[20:], "choices": []})]
    assert passed(parts)[1]


def test_text_in_other_fields_of_an_event_is_removed() -> None:
    guard = Guard()
    raw = f": {KEY[:20]}\nid: {KEY[20:]}\nretry: 5\nwhat\nevent: ping\ndata: {{}}\n\n".encode()
    assert guard.feed(raw) == [b":\nevent: ping\ndata: {}\n\n"]
    assert guard.feed(f"event: {KEY} and more\ndata: 1\n\n".encode()) == [b"data: 1\n\n"]


def test_a_key_inside_one_event_is_redacted_and_the_stream_continues() -> None:
    out, ended = passed([delta(f"it is {KEY}, yes"), delta(" done")])
    assert not ended
    assert "it is [redacted], yes" in all_text(out)
    assert "done" in all_text(out)


@pytest.mark.parametrize("places", [(0, 1), (0, None), (None, 3)])
def test_key_halves_in_different_choices_or_blocks_end_the_stream(
    places: tuple[int | None, int | None],
) -> None:
    chosen = [
        {"delta": {"content": half}} | ({} if at is None else {"index": at})
        for half, at in zip((KEY[:25], KEY[25:]), places, strict=True)
    ]
    assert passed(event({"choices": [choice]}) for choice in chosen) == ([], True)
    blocks = [
        event({"type": "content_block_stop"} | ({} if at is None else {"index": at}))
        for at in places
    ]
    texts = [
        event({"delta": {"text": half}} | ({} if at is None else {"index": at}))
        for half, at in zip((KEY[:25], KEY[25:]), places, strict=True)
    ]
    assert passed([texts[0], blocks[0], texts[1]]) == ([], True)


def test_an_event_name_is_forwarded_only_if_it_is_standard_or_the_type_in_the_data() -> None:
    guard = Guard()
    for name in (KEY[:25], KEY[25:], "other"):
        assert guard.feed(f'event: {name}\ndata: {{"type": "x"}}\n\n'.encode()) == [
            b'data: {"type": "x"}\n\n'
        ]
    for known in (b"event: x\r\n", b"event:x\n", b"event: error\n"):
        raw = known + b'data: {"type": "x"}\n\n'
        assert guard.feed(raw) == [raw]


@pytest.mark.parametrize(
    "text",
    [
        "I change the configuration.",
        " https://example.org/" + "abcdef=+/9" * 50,
        "iVBORw0K" * 500,
        "\u65e5\u672c\u8a9e" * 50,
        '{"path": "/usr/lib/python3/dist-packages',
        KEY[:20],
        KEY.encode().hex()[:38],
        KEY[1:],
    ],
)
@pytest.mark.parametrize("kind", ["chat", "tool", "message"])
def test_text_that_is_not_clearly_a_key_is_forwarded_at_once(kind: str, text: str) -> None:
    guard = Guard()
    for piece in ("so ", *[text[at : at + 4] for at in range(0, len(text), 4)]):
        assert guard.feed(KINDS[kind](piece)) == [KINDS[kind](piece)]


@pytest.mark.parametrize("last", ["?", " and so", "\\u0041\\u0041 and not the rest"])
def test_held_events_are_forwarded_once_they_contain_no_key(last: str) -> None:
    guard = Guard()
    events = [delta(KEY[:25]), tool("x"), delta(KEY[25:30]), delta(last + "." + "more " * 6)]
    assert [len(guard.feed(one)) for one in events] == [0, 0, 0, 4]
    assert guard.feed(delta(KEY[:30])) == []
    assert guard.rest() == [delta(KEY[:30])], "the end of the stream also releases held events"


@pytest.mark.parametrize(
    "held", [[tool(" x")] * 5000, [tool(" x" * 20_000)] * 20], ids=["events", "bytes"]
)
def test_a_stream_that_never_completes_a_possible_key_is_rejected(held: list[bytes]) -> None:
    assert passed([delta(KEY[:25]), *held]) == ([], True)


@given(st.lists(st.text(max_size=30), max_size=20), st.sampled_from(sorted(KINDS)))
def test_a_stream_without_a_key_is_unchanged(texts: list[str], kind: str) -> None:
    events = [KINDS[kind](text.replace("\n", " ").replace("\r", " ")) for text in texts]
    assert passed(events) == (events, False)


@given(
    st.lists(st.integers(1, 60), max_size=12),
    st.text(max_size=10),
    st.sampled_from(["chat", "message", "tool"]),
)
def test_clients_cannot_join_a_key_however_it_is_split(
    cuts: list[int], before: str, kind: str
) -> None:
    text = before + KEY + " end"
    places = sorted({0, *[min(cut, len(text)) for cut in cuts], len(text)})
    out, _ = passed(KINDS[kind](text[a:b]) for a, b in pairwise(places))
    assert KEY not in all_text(out)
    assert not Redactor([KEY]).holds(b"".join(out))


def test_an_event_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(RequestRefusedError, match="UTF-8"):
        Guard().feed(b"data: \xff\n\n")


def test_deeply_nested_json_is_forwarded_or_rejected_without_a_crash() -> None:
    for depth in (10, 500, 900, 980, 5000):
        with suppress(RequestRefusedError):
            Guard().feed(b"data: " + b"[" * depth + b"]" * depth + b"\n\n")


def test_the_bytes_of_an_event_are_unchanged() -> None:
    raw = b'event: ping\r\ndata:{ "a":\t1 }\r\n\r\n'
    assert Guard().feed(raw) == [raw]
    assert json.loads(raw.splitlines()[1][5:]) == {"a": 1}
