"""The host's threads of a copy end, even if another process holds their descriptors or the disk is slow."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from hyperruntime.errors import TransferError
from hyperruntime.transfer.extract import ExtractLimits
from hyperruntime.transfer.tar_pipe import Feeder, LateError, NotTakenError, Receiver, _Chunks


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


def never() -> None:
    raise AssertionError


def test_a_feeder_without_a_reader_stops_although_a_child_holds_its_descriptors() -> None:
    def write(pipe: BinaryIO) -> None:
        for _ in itertools.count():
            pipe.write(bytes(65536))

    feeder = Feeder(write, never)
    with forked_child():
        feeder.start()
        feeder.stop()
    assert feeder.error is None


def test_the_output_of_a_feeder_ends_although_a_child_holds_its_descriptors() -> None:
    feeder = Feeder(lambda pipe: pipe.write(b"all"), never)
    with forked_child():
        feeder.start()
        assert b"".join(iter(lambda: os.read(feeder.reader.fileno(), 2), b"")) == b"all"
        feeder.stop()


def test_an_error_of_a_feeder_is_reported_at_once_and_kept() -> None:
    told: list[Exception | None] = []

    def fail(_: BinaryIO) -> None:
        raise KeyError("why")

    feeder = Feeder(fail, lambda: told.append(feeder.error))
    feeder.start()
    feeder.stop()
    assert [type(error) for error in told] == [KeyError]
    assert isinstance(feeder.error, KeyError)


def test_a_feeder_and_a_receiver_that_were_not_started_can_be_stopped(tmp_path: Path) -> None:
    Feeder(lambda pipe: None, never).stop()
    Receiver(tmp_path / "t", ExtractLimits(), never).stop()


def test_a_failed_receiver_accepts_no_more_data(tmp_path: Path) -> None:
    told: list[bool] = []
    receiver = Receiver(tmp_path / "missing" / "t", ExtractLimits(), lambda: told.append(True))
    receiver.start(None)
    receiver._thread.join()
    assert told == [True]
    receiver.take("stderr", b"words of tar")
    with pytest.raises(NotTakenError):
        receiver.take("stdout", b"chunk")
    receiver.stop()
    assert isinstance(receiver.error, TransferError)
    assert isinstance(receiver.error.__cause__, FileNotFoundError)


def test_a_deadline_applies_while_the_host_does_not_write() -> None:
    chunks = _Chunks()
    chunks.put(bytes(1 << 26))
    chunks.deadline = time.monotonic() + 0.1
    with pytest.raises(LateError):
        chunks.put(b"one more")
