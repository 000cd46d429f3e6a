"""An attached connection is split into streams and an exit code, however its frames are cut."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.host.process import wait_until
from hyperruntime_docker.shell import EndTurn, Frames, SocketShell, read_text

Parts = list[tuple[int, bytes]]


def encode(frames: Parts) -> bytes:
    return b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in frames)


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(min_value=1, max_value=30), max_size=40),
)
def test_frames_are_parsed_from_pieces_of_any_size(frames: Parts, cuts: list[int]) -> None:
    encoded, pieces = encode(frames), []
    for cut in [*cuts, len(encoded) + 1]:
        pieces.append(encoded[:cut])
        encoded = encoded[cut:]
    split = Frames()
    parts = [part for piece in pieces for part in split.split(piece)]
    for stream in (1, 2):
        wanted = b"".join(data for number, data in frames if number == stream)
        assert b"".join(data for number, data in parts if number == stream) == wanted


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, daemons = socket.socketpair()
    yield ours, daemons
    ours.close()
    daemons.close()


def read_all(shell: SocketShell) -> bytes:
    """Read to the end, as the poller does: after each event once."""
    said, poll = b"", select.poll()
    poll.register(shell.output, select.POLLIN)
    while poll.poll(30_000):
        try:
            chunk = shell.read()
        except BlockingIOError:
            continue
        said += chunk
        if not chunk:
            break
    shell.close_output()
    return said


def test_both_streams_are_read_and_end_with_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, daemons = ends
    left: list[float] = []

    def exit_code(left_s: float) -> int:
        left.append(left_s)
        return 7

    shell = SocketShell(ours, encode([(2, b"early ")]), exit_code)
    daemons.sendall(encode([(1, b"out"), (2, b"err"), (1, b"put")]))
    os.write(shell.input, b"question")
    assert daemons.recv(100) == b"question"
    assert shell.wait(0) is None
    daemons.shutdown(socket.SHUT_WR)
    assert read_all(shell) == b"early outerrput"
    assert shell.wait(120) == shell.wait(0) == 7
    assert len(left) == 1
    assert 0 <= left[0] <= 120
    assert shell.last_words == "early err"


def test_half_a_frame_is_no_output_yet(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    shell = SocketShell(ours, b"", lambda _: 0)
    frame = encode([(1, b"out")])
    daemons.sendall(frame[:5])
    with pytest.raises(BlockingIOError):
        shell.read()
    with pytest.raises(BlockingIOError):
        shell.read()
    daemons.sendall(frame[5:])
    assert shell.read() == b"out"
    shell.close_output()


def test_an_unknown_exit_code_is_asked_for_again(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    codes: list[int | None] = [3, None]
    released: list[int] = []
    shell = SocketShell(ours, b"", lambda _: codes.pop(), lambda: released.append(1))
    daemons.close()
    assert read_all(shell) == b""
    assert shell.wait(0.1) is None
    assert shell.wait(0.1) == 3
    assert not released
    shell.close()
    assert released


def test_all_output_of_a_short_container_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, daemons = ends
    daemons.sendall(encode([(2, b"and "), (1, b"ever")]))
    daemons.close()
    assert read_text(ours, encode([(1, b"for ")]), 5) == ("for and ever", False)


def test_containers_of_a_daemon_that_can_lock_up_end_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperruntime_docker.shell.limit_s", lambda engine, verb: 60.0)
    pairs = [socket.socketpair() for _ in range(3)]
    first, second, third = (
        SocketShell(ours, b"", lambda _: 0, turn=EndTurn()) for ours, _ in pairs
    )
    told = [threading.Event() for _ in pairs]

    def end(number: int, shell: SocketShell) -> None:
        shell.close_input()
        told[number].set()

    for number, shell in enumerate((first, second, third)):
        threading.Thread(target=end, args=(number, shell), daemon=True).start()
        assert told[number].wait(0.3 if number else 20) == (number == 0)
    first.close_output()
    assert first.wait(20) == 0
    assert wait_until(lambda: told[1].is_set() != told[2].is_set(), 20)
    assert not (told[1].wait(0.3) and told[2].wait(0.3))
    (second if told[1].is_set() else third).close()  # its end was never seen
    assert told[1].wait(20)
    assert told[2].wait(20)
    for shell in (first, second, third):
        shell.close()
        shell.close_output()
    for _, daemons in pairs:
        assert daemons.recv(10) == b""
        daemons.close()


def test_a_forked_child_does_not_wait_for_the_turn_of_its_parent() -> None:
    ours = EndTurn()
    ours.take()
    child = os.fork()
    if child == 0:
        try:
            began = time.monotonic()
            theirs = EndTurn()
            theirs.take()
            theirs.give_back()
            ours.give_back()
            os._exit(time.monotonic() - began > 10)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ours.give_back()
