"""A session with a fake shell that the test controls."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hyperruntime.errors import ContainerLostError
from hyperruntime.exec import execution
from hyperruntime.exec.exec_marks import Mark, MarkLimit, MarkNumbers
from hyperruntime.exec.exec_script import make_request
from hyperruntime.exec.execution import Execution
from hyperruntime.exec.lane import Lane
from hyperruntime.exec.options import ExecOptions
from hyperruntime.exec.session import Session
from hyperruntime.host.process import PIPE, STDOUT, ProcessShell, spawn


class SilentShell:
    """A shell that is ready, accepts every request, and never executes it."""

    def __init__(self) -> None:
        self._requests, self.input = os.pipe()
        self.output, self._said = os.pipe()
        os.write(self._said, b"ready shared w unlimited dash\n")

    def end(self) -> None:
        """Close the output, as the end of a container does."""
        os.close(self._said)

    def read(self) -> bytes:
        return os.read(self.output, 4096)

    def close_input(self) -> None:
        pass

    def wait(self, timeout_s: float) -> int | None:
        return 0

    def close(self) -> None:
        pass

    def close_output(self) -> None:
        for descriptor in (self.output, self.input, self._requests):
            os.close(descriptor)


@pytest.fixture
def shell() -> SilentShell:
    return SilentShell()


@pytest.fixture
def session(shell: SilentShell, tmp_path: Path) -> Iterator[Session]:
    made = Session(shell, str(tmp_path), MarkNumbers())
    assert made.start(5)
    yield made
    with suppress(OSError):  # the shell may have ended already
        shell.end()
    made.abandon()


@pytest.mark.timeout(20)
def test_a_command_fails_at_once_if_its_container_ends(
    session: Session, shell: SilentShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_HEARTBEAT_S", 3600.0)
    request = make_request(["true"], env={}, workdir=None, has_input=False)
    command = Execution(session, request, ExecOptions(output_limit_bytes=10))
    threading.Timer(0.05, shell.end).start()
    with pytest.raises(ContainerLostError):
        command.run()


def test_the_error_text_of_a_shell_that_ended_at_once_is_kept(tmp_path: Path) -> None:
    """The process may end before the session writes to it; its error text must not be lost."""
    for _ in range(3):
        process = spawn(
            ["/bin/sh", "-c", "echo no such image >&2; exit 125"], stdin=PIPE, stderr=STDOUT
        )
        session = Session(ProcessShell(process), str(tmp_path), MarkNumbers())
        process.wait()
        assert not session.start(30)
        assert session.error_text() == "no such image"
        session.close(1)
        session.abandon()


def test_a_lane_that_the_session_reopens_is_read_until_its_end(
    session: Session, tmp_path: Path
) -> None:
    """A lane ends; before its caller reads the end, the session opens the write end of the pipe
    (Lane.hang_up).
    """
    command = Execution(session, make_request(["true"]), ExecOptions(output_limit_bytes=10))
    lane = command._lane = Lane(str(tmp_path), mark())
    command._end, command._handed_over = None, True
    try:
        again = os.open(tmp_path / lane.name / "s", os.O_WRONLY)
        command._read_status()
        threading.Timer(0.05, os.close, [again]).start()
        assert lane.wait_for("up", 120) is None
        command._read_status()
        assert command._has_ended()
    finally:
        lane.close()


def mark() -> Mark:
    limit = MarkLimit.parse("w", "unlimited")
    assert limit is not None
    return limit.mark(1)
