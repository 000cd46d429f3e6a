"""The host's threads of a copy end, even if another process holds their descriptors or the disk is
slow.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from hyperruntime.errors import TransferError
from hyperruntime.exec.streams import CallerError, InputSource
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime.transfer.tar_pipe import LateError, Receiver, Sender, _Chunks
from hyperruntime.transfer.tar_writer import read_tree


@contextmanager
def forked_child() -> Iterator[None]:
    """Fork a child that holds a copy of every descriptor."""
    if (child := os.fork()) == 0:
        signal.pause()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Endless:
    """A source without an end."""

    def read(self, size: int) -> bytes:
        return bytes(size)


def copying_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hyperruntime-input"]


def test_an_input_without_a_reader_stops_although_a_child_holds_its_descriptors() -> None:
    source = InputSource(cast(BinaryIO, Endless()))
    with forked_child():
        (thread,) = copying_threads()
        source.close()
        thread.join(60)
        assert not thread.is_alive()


def test_the_data_of_an_input_end_although_a_child_holds_its_descriptors(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"all")
    source = InputSource(cast(BinaryIO, Sender(tmp_path / "file", "file")))
    with forked_child():
        archive = b"".join(iter(source.read, b""))
        source.close()
    assert archive == b"".join(read_tree(tmp_path / "file", "file"))


def test_an_unreadable_tree_is_an_error_of_the_input_and_keeps_its_cause(tmp_path: Path) -> None:
    source = InputSource(cast(BinaryIO, Sender(tmp_path / "missing", "top")))
    with pytest.raises(CallerError) as caught:
        source.read()
    source.close()
    error = caught.value.cause
    assert isinstance(error, TransferError)
    assert str(error).startswith(f"cannot read {str(tmp_path / 'missing')!r}: ")
    assert isinstance(error.__cause__, TransferError)
    assert isinstance(error.__cause__.__cause__, FileNotFoundError)


def test_a_large_tree_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in range(200):
        (tmp_path / "tree" / str(name)).write_bytes(b"x" * name)
    (tmp_path / "tree" / "large").write_bytes(os.urandom(3 << 20))
    parts = list(iter(partial(Sender(tmp_path / "tree", "tree").read, 0), b""))
    assert b"".join(parts) == b"".join(read_tree(tmp_path / "tree", "tree"))
    assert all(len(part) >= 1 << 16 for part in parts[:-1])


def test_a_receiver_that_was_not_started_can_be_stopped(tmp_path: Path) -> None:
    Receiver(tmp_path / "t", ExtractLimits(), None).stop()


def test_a_failed_receiver_accepts_no_more_data(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "missing" / "t", ExtractLimits(), None)
    receiver.start(None)
    receiver._thread.join()
    assert select.select([receiver.cancel_fd], [], [], 0)[0] == [receiver.cancel_fd]
    receiver.take("stderr", b"words of tar")
    for _ in range(100):
        receiver.take("stdout", bytes(1 << 20))  # more than fits into the queue
    assert not receiver._chunks._queue
    receiver.stop()
    assert isinstance(receiver.error, TransferError)
    assert isinstance(receiver.error.__cause__, FileNotFoundError)


def test_a_deadline_applies_while_the_host_does_not_write() -> None:
    chunks = _Chunks()
    chunks.put(bytes(1 << 26))
    chunks.deadline = time.monotonic() + 0.1
    with pytest.raises(LateError):
        chunks.put(b"one more")
