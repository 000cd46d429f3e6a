"""The message of a shell about a program that it could not execute: recognised from its first byte
on, held back, and replaced. What the three shells say is in tests/contract/test_exec.py.
"""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from hyperruntime.exec.exec_script import StartFailure, make_request
from hyperruntime.exec.streams import OutputStreams

LANE = "/run/hyperruntime/0123456789abcdef"
MESSAGES = [
    b"hyperruntime: 3: exec: prog2: not found\n",
    b"hyperruntime: exec: line 4: prog2: not found\n",
    f"{LANE}/c: line 4: prog2: Is a directory\n{LANE}/c: line 4: exec: prog2: cannot "
    "execute: ...\n".encode(),
]
OF_ENV = [
    b"env: 'prog2': No such file or directory\n",
    "env: \u2018prog2\u2019: No such file or directory\n".encode(),
    b"env: can't execute 'prog2': No such file or directory\n",
]
OTHERS = [
    b"hyperruntime: x",
    b"hyperruntime: 3: exec: other: ",
    b"/run/hyperruntime/other/c: ",
    b"env: x",
    MESSAGES[0] + b"x" * 10_000,
]


def failure(**env: str) -> StartFailure:
    return StartFailure(make_request(["prog2"], env=env), LANE)


def test_each_beginning_of_a_message_may_be_one_and_other_output_is_not() -> None:
    for message in MESSAGES:
        assert all(failure().may_be(message[:length]) for length in range(1, len(message) + 1))
    for other in OTHERS:
        assert not failure().may_be(other)


@pytest.mark.parametrize("message", OF_ENV)
def test_a_message_of_env_counts_only_if_env_starts_the_program(message: bytes) -> None:
    through = failure(**{"a.b": "1"})
    assert all(through.may_be(message[:length]) for length in range(1, len(message) + 1))
    assert (through.is_told(message), failure().is_told(message)) == (True, False)
    assert not failure().may_be(message)


def test_the_sentence_is_one_line_for_any_name_and_reason() -> None:
    odd = StartFailure(make_request(["a\nb\udcff"]), LANE).sentence(127, b"")
    assert odd == (
        b"hyperruntime: the container has no program 'a\\nb\\udcff'; check its name and PATH\n"
    )
    assert b"in the container: the container refuses it\n" in failure().sentence(126, b"?")


class Lane:
    """A lane whose streams are pipes."""

    def __init__(self) -> None:
        self._pipes: dict[str, tuple[int, int]] = {}

    def open_stream(self, letter: str) -> int:
        self._pipes[letter] = os.pipe2(os.O_NONBLOCK)
        return self._pipes[letter][0]

    def say(self, streams: OutputStreams, letter: str, text: bytes) -> None:
        reader, writer = self._pipes[letter]
        os.write(writer, text)
        assert streams.read(reader)

    def close(self, streams: OutputStreams) -> None:
        streams.close()
        for _, writer in self._pipes.values():
            os.close(writer)


@pytest.mark.parametrize("instead", [None, b"plain\n"])
def test_what_is_held_back_is_handed_over_or_replaced_at_the_end(instead: bytes | None) -> None:
    heard: list[tuple[str, bytes]] = []
    streams, lane = OutputStreams(100, lambda *each: heard.append(each)), Lane()
    streams.open(cast(Any, lane))
    streams.expect("stderr", failure().may_be)
    for at in range(len(MESSAGES[0])):
        lane.say(streams, "e", MESSAGES[0][at : at + 1])
    assert (heard, streams.held) == ([], MESSAGES[0])
    streams.settle(instead)
    streams.settle(instead)
    assert heard == [("stderr", instead or MESSAGES[0])]
    assert streams.buffers["stderr"].value() == (instead or MESSAGES[0])
    lane.close(streams)


def test_output_that_turns_out_to_be_other_is_handed_over_at_once_and_whole() -> None:
    heard: list[tuple[str, bytes]] = []
    streams, lane = OutputStreams(100, lambda *each: heard.append(each)), Lane()
    streams.open(cast(Any, lane))
    streams.expect("stderr", failure().may_be)
    for piece in (b"hyperruntime: 3", b": ready\n", b"hyperruntime: 3: exec: prog2: x"):
        lane.say(streams, "e", piece)
    lane.say(streams, "o", b"hyperruntime: ")
    streams.settle(b"never")
    said = b"hyperruntime: 3: ready\nhyperruntime: 3: exec: prog2: x"
    assert b"".join(chunk for name, chunk in heard if name == "stderr") == said
    assert heard[0] == ("stderr", b"hyperruntime: 3: ready\n")
    assert ("stdout", b"hyperruntime: ") in heard
    lane.close(streams)
