"""Run one exec in a session: the poll loop between a command's streams and its caller. See docs/decisions/0002-exec.md.

The calling thread does all the work itself: no hand-over to another thread lies between a command's end and
its result.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time
from collections.abc import Callable
from typing import BinaryIO, Literal

from hyperruntime.errors import ContainerLostError, ExecStartError, StorageError, WorkdirNotFoundError
from hyperruntime.lane import Lane
from hyperruntime.output import OutputBuffer
from hyperruntime.script import ExecRequest, lane_script
from hyperruntime.session import Session
from hyperruntime.spec import ExecResult

OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], None]

TIMEOUT_EXIT_CODE = 124
_CHUNK_BYTES = 1 << 20
_PIPE_BYTES = 65536
_GRACE_S = 0.25  # how long output of a command's own children may follow its end
_KILL_S = 1.6  # of the 2 s within which a call returns after its deadline
_HEARTBEAT_S = 10.0
_START_TRIES = 20
_F_SETPIPE_SZ = 1031
_IN = select.POLLIN


class CancelledExecError(Exception):
    """The caller gave up; everything the command had started was ended."""


class Execution:
    """One command, from its request to its result; used once, by one thread."""

    def __init__(
        self,
        session: Session,
        request: ExecRequest,
        *,
        timeout_s: float | None,
        source: BinaryIO | None,
        on_output: OutputCallback | None,
        output_limit_bytes: int,
        cancel_fd: int | None = None,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            session: where it runs.
            request: what runs.
            timeout_s: seconds until everything it started is ended.
            source: what its standard input is fed from.
            on_output: called with each chunk while it runs.
            output_limit_bytes: how much of each stream is kept.
            cancel_fd: becomes readable when the caller gives up.
        """
        self._session, self._request, self._source, self._on_output = session, request, source, on_output
        self._timeout_s, self._cancel_fd = timeout_s, cancel_fd
        self._buffers = {
            "stdout": OutputBuffer(output_limit_bytes),
            "stderr": OutputBuffer(output_limit_bytes),
        }
        self._streams: dict[int, Literal["stdout", "stderr"]] = {}
        self._wide: set[int] = set()
        self._input: int | None = None
        self._source_fd: int | None = None
        self._pending = b""
        self._status: str | None = None
        self._no_workdir = False
        self._poll = select.poll()

    def run(self) -> ExecResult:
        """Run the command to its end, its deadline, or the end of its container.

        Raises:
            ContainerLostError: the container ended or stopped answering.
            ExecStartError: no process could be made for it, or its working directory does not exist.
            StorageError: the host has no space or descriptors left for the exchange files.
        """
        self._started = time.monotonic()
        self._deadline = None if self._timeout_s is None else self._started + self._timeout_s
        for attempt in range(_START_TRIES):
            result = self._attempt()
            if result is not None:
                return result
            if self._deadline is not None and time.monotonic() > self._deadline:
                break
            time.sleep(0.02 * (attempt + 1))
        raise ExecStartError(
            "no process could be made in the container for this command (its pids limit is reached); "
            "end what runs in it, or raise Limits.pids"
        )

    def _attempt(self) -> ExecResult | None:
        try:
            lane = self._session.acquire_lane()
        except OSError as error:
            raise _storage_error(error) from error
        self._lane, self._tag_kib, self._status = lane, self._session.next_tag_kib(), None
        reusable = False
        try:
            self._open(lane)
            self._wait()
            reusable = self._finish()
            if self._no_workdir:
                raise WorkdirNotFoundError(str(self._request.workdir))
            return self._result()
        except WorkdirNotFoundError:
            raise
        except (ContainerLostError, StorageError):
            raise
        except BaseException:
            self._abort()
            raise
        finally:
            self._close_streams()
            (self._session.release_lane if reusable else self._session.retire_lane)(lane)

    def _open(self, lane: Lane) -> None:
        try:
            self._open_streams(lane)
            lane.start(lane_script(self._request, lane.sequence, self._tag_kib))
        except OSError as error:
            raise _storage_error(error) from error

    def _open_streams(self, lane: Lane) -> None:
        lane.sequence += 1
        self._poll = select.poll()
        self._poll.register(lane.status, _IN)
        for letter, name in (("o", "stdout"), ("e", "stderr")):
            descriptor = lane.open_stream(letter)
            self._streams[descriptor] = "stdout" if name == "stdout" else "stderr"
            self._poll.register(descriptor, _IN)
        if self._request.has_input:
            self._input = lane.open_input()
        if self._cancel_fd is not None:
            self._poll.register(self._cancel_fd, _IN)

    def _wait(self) -> None:
        while self._status is None:
            events = self._poll.poll(self._poll_ms())
            if not events:
                self._on_silence()
            for descriptor, event in events:
                self._on_event(descriptor, event)

    def _poll_ms(self) -> int:
        if self._deadline is None:
            return int(_HEARTBEAT_S * 1000)
        return int(max(0.0, min(_HEARTBEAT_S, self._deadline - time.monotonic())) * 1000) + 1

    def _on_silence(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._status = "timeout"
        elif not self._session.responds():
            raise ContainerLostError("the container stopped answering while a command ran in it")

    def _on_event(self, descriptor: int, event: int) -> None:
        if descriptor in self._streams:
            self._read(descriptor)
            if self._deadline is not None and time.monotonic() >= self._deadline and self._status is None:
                self._status = "timeout"
        elif descriptor == self._lane.status:
            self._read_status()
        elif descriptor == self._cancel_fd:
            raise CancelledExecError
        elif descriptor == self._input:
            self._feed(event)
        elif descriptor == self._source_fd:
            self._fill()

    def _read(self, descriptor: int) -> bool:
        """Read once; return whether there was anything."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES if descriptor in self._wide else _PIPE_BYTES)
        except BlockingIOError:
            return False
        name = self._streams[descriptor]
        if not chunk:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]
            self._wide.discard(descriptor)
            os.close(descriptor)
            return False
        if len(chunk) == _PIPE_BYTES and descriptor not in self._wide:
            self._wide.add(descriptor)
            _widen(descriptor)
        self._buffers[name].write(chunk)
        if self._on_output is not None:
            self._on_output(name, chunk)
        return True

    def _read_status(self) -> None:
        data = os.read(self._lane.status, 4096)
        if not data:
            self._status = "gone"
            return
        for line in data.decode(errors="replace").splitlines():
            number, _, word = line.partition(" ")
            if number == str(self._lane.sequence) and self._status is None:
                if word == "in":
                    self._start_input()
                elif word == "dir":
                    self._no_workdir = True  # the lane is free only once its own status follows
                else:
                    self._status = word
            elif number == "0" and word.startswith("up ") and word[3:].isdigit():
                self._lane.group = int(word[3:])
            elif line == "0 fork" and self._status is None:
                self._status = "fork"

    def _start_input(self) -> None:
        if self._input is None:
            return
        self._input = self._lane.reopen_input(self._input)
        if self._input is None:
            return
        _widen(self._input)
        if self._source is not None:
            self._source_fd = _pollable(self._source)
        if self._source_fd is not None:
            self._poll.register(self._source_fd, _IN)
        else:
            self._poll.register(self._input, select.POLLOUT)

    def _fill(self) -> None:
        """Take what a pipe or terminal has for the command's input, then wait until the command takes it."""
        assert self._source_fd is not None
        self._poll.unregister(self._source_fd)
        self._pending = os.read(self._source_fd, _CHUNK_BYTES)
        if not self._pending:
            self._end_input()
        elif self._input is not None:
            self._poll.register(self._input, select.POLLOUT)

    def _feed(self, event: int) -> None:
        assert self._input is not None
        if not self._pending and self._source_fd is None and self._source is not None:
            self._pending = self._source.read(_CHUNK_BYTES) or b""
        if not self._pending or event & (select.POLLERR | select.POLLNVAL):
            self._end_input()
            return
        try:
            written = os.write(self._input, self._pending)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._end_input()
            return
        self._pending = self._pending[written:]
        if not self._pending and self._source_fd is not None:
            self._poll.unregister(self._input)
            self._poll.register(self._source_fd, _IN)

    def _end_input(self) -> None:
        if self._input is not None:
            for descriptor in (self._input, self._source_fd):
                if descriptor is not None:
                    try:
                        self._poll.unregister(descriptor)
                    except KeyError:
                        pass
            os.close(self._input)
            self._input, self._source_fd = None, None

    def _finish(self) -> bool:
        """Settle what the status means; return whether the lane may serve again."""
        match self._status:
            case "timeout":
                self._end_tree()
                self._drain(_GRACE_S)
                return False
            case "gone":
                self._session.on_death()
                if not self._session.responds():
                    raise ContainerLostError("the container ended while a command ran in it")
                self._end_tree()
                self._drain(_GRACE_S)
                return False
            case "fork":
                return False
        self._drain(_GRACE_S)
        self._renew()
        return True

    def _result(self) -> ExecResult | None:
        """Return the result, or None when the command never started and may be tried again."""
        if self._status == "fork":
            return None
        codes = {"timeout": TIMEOUT_EXIT_CODE, "gone": 137}
        status = self._status or ""
        return ExecResult(
            args=tuple(os.fsdecode(a) for a in self._request.args),
            exit_code=codes[status] if status in codes else int(status),
            stdout=self._buffers["stdout"].value(),
            stderr=self._buffers["stderr"].value(),
            timed_out=status == "timeout",
            truncated=any(buffer.truncated for buffer in self._buffers.values()),
            duration_s=time.monotonic() - self._started,
        )

    def _drain(self, grace_s: float) -> None:
        """Read what is there, and what children of the command still write for a moment."""
        end = time.monotonic() + grace_s
        while self._streams:
            moved = [self._read(descriptor) for descriptor in tuple(self._streams)]
            if any(moved) and time.monotonic() < end + 1:
                continue
            remaining = end - time.monotonic()
            if not self._streams or remaining <= 0:
                return
            poll = select.poll()
            for descriptor in self._streams:
                poll.register(descriptor, _IN)
            poll.poll(int(remaining * 1000) + 1)

    def _renew(self) -> None:
        """Make the lane ready for the next exec though a background process may hold this one's streams."""
        for descriptor, name in self._streams.items():
            self._lane.renew_stream("o" if name == "stdout" else "e")
            self._session.drain(descriptor)
        self._streams.clear()
        if self._request.has_input:
            self._lane.renew_stream("i")

    def _end_tree(self) -> None:
        if not self._session.end_tree(self._lane, self._tag_kib, _KILL_S):
            raise ContainerLostError(
                f"what {os.fsdecode(self._request.args[0])!r} had started could not be ended within "
                f"{_KILL_S} s, so its container was given up"
            )

    def _abort(self) -> None:
        self._session.end_tree(self._lane, self._tag_kib, _KILL_S)

    def _close_streams(self) -> None:
        for descriptor in self._streams:
            os.close(descriptor)
        self._streams.clear()
        self._wide.clear()
        if self._input is not None:
            os.close(self._input)
            self._input = None


def input_source(data: bytes | BinaryIO | None) -> BinaryIO | None:
    """Return what an exec's input is read from: bytes become a file in memory."""
    return io.BytesIO(data) if isinstance(data, (bytes, bytearray, memoryview)) else data


def _pollable(source: BinaryIO) -> int | None:
    """Return the descriptor of a pipe, socket or terminal, whose read could block; None for all else."""
    try:
        descriptor = source.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, AttributeError, ValueError):
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None


def _widen(descriptor: int) -> None:
    """Give a FIFO a large buffer where the kernel allows it."""
    import fcntl

    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _CHUNK_BYTES)
    except OSError:
        pass


def _storage_error(error: OSError) -> StorageError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"no file descriptors left for another exec ({error}); raise `ulimit -n`")
    return StorageError(
        f"the exchange directory cannot be used: {error}; free space there, or set TMPDIR to another disk"
    )
