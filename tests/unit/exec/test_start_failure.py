"""The message of a shell about a program that it could not execute: held back, recognised, and said
plainly.
"""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from hyperruntime.exec.exec_script import make_request
from hyperruntime.exec.output_streams import OutputStreams
from hyperruntime.exec.start_failure import StartFailure

LANE = "/run/hyperruntime/0123456789abcdef"
MESSAGES = [
    b"hyperruntime: 3: exec: prog2: not found\n",
    b"hyperruntime: 12: exec: prog2: Permission denied\n",
    b"hyperruntime: exec: line 4: prog2: not found\n",
    f"{LANE}/c: line 4: exec: prog2: not found\n".encode(),
    f"{LANE}/c: line 4: prog2: Is a directory\n{LANE}/c: line 4: exec: prog2: cannot "
    "execute: ...\n".encode(),
]
OF_ENV = [
    b"env: 'prog2': No such file or directory\n",
    "env: \u2018prog2\u2019: No such file or directory\n".encode(),
    b"env: can't execute 'prog2': No such file or directory\n",
]
OTHERS = [
    b"a",
    b"hyperruntime: x",
    b"hyperruntime: 3: exec: other: ",
    b"/run/hyperruntime/other/c: ",
    b"env: x",
    b"3",
]


def failure(**env: str) -> StartFailure:
    return StartFailure(make_request(["prog2"], env=env), LANE)


@pytest.mark.parametrize("message", MESSAGES)
def test_each_beginning_of_a_message_may_be_one(message: bytes) -> None:
    assert all(failure().may_be(message[:length]) for length in range(1, len(message) + 1))


@pytest.mark.parametrize("message", OF_ENV)
def test_a_message_of_env_counts_only_if_env_starts_the_program(message: bytes) -> None:
    through = failure(**{"a.b": "1"})
    assert all(through.may_be(message[:length]) for length in range(1, len(message) + 1))
    assert through.is_told(message)
    assert not failure().may_be(message)
    assert not failure().is_told(message)


@pytest.mark.parametrize("other", [*OTHERS, MESSAGES[0] + b"x" * 10_000])
def test_other_output_is_not_held_back(other: bytes) -> None:
    assert not failure().may_be(other)


@pytest.mark.parametrize(
    ("program", "code", "said", "sentence"),
    [
        ("prog2", 127, b"prog2: not found", "the container has no program 'prog2'; check its name and PATH"),
        ("a/b", 127, b"", "the container has no program 'a/b', or not the interpreter that its first line "
            "names"),
        ("p", 126, b"p: Permission denied", "the program 'p' cannot be executed in the container: permission denied"),
        ("prog2", 126, b"?", "the program 'prog2' cannot be executed in the container: the container refuses it"),
        ("a\nb\udcff", 127, b"", "the container has no program 'a\\nb\\udcff'; check its name and PATH"),
    ],
)  # fmt: skip
def test_the_sentence_is_one_line(program: str, code: int, said: bytes, sentence: str) -> None:
    made = StartFailure(make_request([program]), LANE).sentence(code, said)
    assert made == f"hyperruntime: {sentence}\n".encode()


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


@pytest.mark.parametrize(
    "pieces", [[MESSAGES[0]], [MESSAGES[0][: at + 1][at:] for at in range(len(MESSAGES[0]))]]
)
@pytest.mark.parametrize("instead", [None, b"plain\n"])
def test_what_is_held_back_is_handed_over_or_replaced_at_the_end(
    pieces: list[bytes], instead: bytes | None
) -> None:
    heard: list[tuple[str, bytes]] = []
    streams, lane = OutputStreams(100, lambda *each: heard.append(each)), Lane()
    streams.open(cast(Any, lane))
    streams.expect("stderr", failure().may_be)
    for piece in pieces:
        lane.say(streams, "e", piece)
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
