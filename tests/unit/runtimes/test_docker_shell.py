"""An attached connection is split into streams and an exit code, however its frames are cut."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime_docker.shell import SocketShell, read_text, split_frames

Frames = list[tuple[int, bytes]]


def encode(frames: Frames) -> bytes:
    return b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in frames)


class Pieces:
    """A connection that delivers these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def recv(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=30), max_size=40),
)
def test_frames_are_parsed_from_pieces_of_any_size(frames: Frames, cuts: list[int]) -> None:
    encoded, pieces = encode(frames), []
    for cut in [*cuts, len(encoded) + 1]:
        pieces.append(encoded[:cut])
        encoded = encoded[cut:]
    early, *later = pieces
    parts = list(split_frames(cast(socket.socket, Pieces(later)), early))
    for stream in (1, 2):
        wanted = b"".join(data for number, data in frames if number == stream)
        assert b"".join(data for number, data in parts if number == stream) == wanted


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, daemons = socket.socketpair()
    yield ours, daemons
    ours.close()
    daemons.close()


def read_all(descriptor: int) -> bytes:
    data = b""
    while chunk := os.read(descriptor, 65536):
        data += chunk
    return data


def test_output_and_errors_are_separate_and_end_with_the_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    shell = SocketShell(ours, encode([(2, b"early ")]), lambda: 7)
    daemons.sendall(encode([(1, b"out"), (2, b"err"), (1, b"put")]))
    os.write(shell.input, b"question")
    assert daemons.recv(100) == b"question"
    assert shell.wait(0) is None
    daemons.shutdown(socket.SHUT_WR)
    assert read_all(shell.output) == b"output"
    assert read_all(shell.errors) == b"early err"
    assert shell.wait(30) == 7
    assert shell.last_words == "early err"
    shell.close()
    shell.close_output()


def test_closing_the_input_sends_end_of_file_and_output_still_arrives(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, daemons = ends
    shell = SocketShell(ours, b"", lambda: 0)
    shell.close_input()
    shell.close_input()
    assert daemons.recv(10) == b""
    daemons.sendall(encode([(1, b"bye")]))
    daemons.close()
    assert read_all(shell.output) == b"bye"
    shell.close()
    shell.close_output()


def test_unread_output_does_not_block_the_end(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    shell = SocketShell(ours, b"", lambda: 3)
    shell.close_output()
    sender = threading.Thread(target=daemons.sendall, args=(encode([(1, b"x" * 3_000_000)]),))
    sender.start()
    sender.join(10)
    assert not sender.is_alive()
    daemons.close()
    assert shell.wait(30) == 3
    shell.close()
    shell.close()


def test_an_unknown_exit_code_is_none(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    shell = SocketShell(ours, b"", lambda: None)
    daemons.close()
    assert read_all(shell.output) == b""
    assert shell.wait(0.1) is None
    shell.close()
    shell.close_output()


def test_all_output_of_a_short_container_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    daemons.sendall(encode([(2, b"and "), (1, b"ever")]))
    daemons.close()
    assert read_text(ours, encode([(1, b"for ")]), 5) == "for and ever"
