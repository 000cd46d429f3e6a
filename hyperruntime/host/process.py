"""Run programs on the host; the only module that uses ``subprocess``.

Every process gets its own session, so that a signal to our process group does not reach it, and a
``kill 0`` in it does not reach us. Drivers of other packages may use the names in ``__all__``; the
others may change without notice.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import resource
import select
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.host.inherited import (
    default_signals_args,
    file_limit_args,
    ignored_signals,
    shell_environment,
)
from hyperruntime.host.python import find_program, python_args

__all__ = [
    "PIPE",
    "STDOUT",
    "HostProcess",
    "ProcessResult",
    "ProcessShell",
    "find_program",
    "is_alive",
    "kill_group",
    "last_line",
    "pid_namespace",
    "process_start_ticks",
    "python_args",
    "run_process",
    "spawn",
    "spawn_attached",
    "stream_process",
    "wait_until",
]
_TAIL_BYTES = 64 * 1024
_OTHERS_S = 2.0  # for the output of children that outlive a program
_REAP_S = 10.0  # for the end of a killed program
_CHUNK_BYTES = 1 << 16
MOST_OVERLOAD = 3.0  # of `overload`
DEVNULL = subprocess.DEVNULL
PIPE = subprocess.PIPE
STDOUT = subprocess.STDOUT
HostProcess = subprocess.Popen[bytes]
# processes of stream_process, with before_kill
_Streaming = dict[HostProcess, Callable[[int], None] | None]
_streaming: PerProcess[_Streaming] = PerProcess(dict)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STACK = re.compile(r"^(runtime stack:|goroutine \d+ \[|SIG[A-Z]+: )", re.MULTILINE)
# printed by Go before a stack trace
_CRASH = re.compile(r"^(fatal error|panic|runtime|runtime/cgo): .*", re.MULTILINE)


@attrs.frozen(kw_only=True)
class ProcessResult:
    """How a host process ended.

    Attributes:
        args: argv of the process.
        exit_code: 0-255, or minus the signal that killed it.
        stdout: all of its output; empty when streamed.
        stderr: all of its error output; when streamed, the last 64 KiB of both streams.
    """

    args: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def error_text(self) -> str:
        """The last non-empty line of stderr, else the exit code; for error messages."""
        return last_line(self.stderr.decode(errors="replace")) or f"exit code {self.exit_code}"


@attrs.frozen(kw_only=True)
class ProcessLimits:
    """Limits of a program that works on files of others.

    Attributes:
        memory_bytes: of each of its processes, for data: an allocation beyond it fails.
        output_bytes: of both outputs; it is ended if it writes more.
    """

    memory_bytes: int
    output_bytes: int


class OutputLimitError(Exception):
    """A program wrote more than its limit, and was ended."""


def last_line(text: str, prefix: str = "") -> str:
    """Return the last line that is not blank, or "", without ``prefix``, a regular expression.

    For a crashed Go program, such as Podman out of memory, it is the line before the stack trace.
    Colours, which Apptainer's starter writes even to a file, are removed.
    """
    text = _COLOUR.sub("", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _STACK.search(text) and (crash := _CRASH.search(text)):
        return crash[0]
    return re.sub(f"^{prefix}", "", lines[-1]) if lines else ""


def run_process(
    args: Sequence[str],
    *,
    input: bytes | int | None = None,  # noqa: A002 - subprocess's own word
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    limits: ProcessLimits | None = None,
) -> ProcessResult:
    """Run a program to its end and return all its output; a non-zero exit code is a result, not an
    error.

    Args:
        args: argv.
        input: data for its standard input, or a descriptor; None means an empty one.
        cwd: working directory; None means this process's.
        env: whole environment; None as for :func:`spawn`.
        timeout_s: seconds it may take; None means no limit.
        limits: of its memory and output; None means none.

    Raises:
        FileNotFoundError: the program or ``cwd`` does not exist.
        OutputLimitError: it wrote more than ``limits`` allows and was killed with its process
            group.
        TimeoutError: it ran longer than ``timeout_s`` and was killed with its process group.
    """
    data = input if isinstance(input, bytes) else b""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = spawn(args, stdin=input if isinstance(input, int) else stdin, cwd=cwd, env=env)
    try:
        if limits is not None:
            _limit_memory(process.pid, limits.memory_bytes)
        most_bytes = math.inf if limits is None else limits.output_bytes
        stdout, stderr = _communicate(process, data, timeout_s, most_bytes)
    except BaseException as error:
        kill_group(process)
        # before the wait: a child in another session may hold their other ends
        _close_pipes(process)
        reap(process, _REAP_S)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"{args[0]} ran past {timeout_s} s and was ended") from None
        raise
    return ProcessResult(
        args=tuple(args), exit_code=process.returncode, stdout=stdout, stderr=stderr
    )


def _limit_memory(pid: int, most_bytes: int) -> None:
    with suppress(OSError):  # it has ended
        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        limit = most_bytes if hard == resource.RLIM_INFINITY else min(hard, most_bytes)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def _communicate(
    process: subprocess.Popen[bytes], data: bytes, timeout_s: float | None, most_bytes: float
) -> tuple[bytes, bytes]:
    """Do what ``Popen.communicate`` does, but fail if the program writes too much, and do not wait
    for others that have its outputs after its end: a failed ``unshare`` leaves a child that waits
    for it for ever.

    Raises:
        OutputLimitError: it wrote more than ``most_bytes``.
        TimeoutExpired: it took longer than ``timeout_s``.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    left = memoryview(data)
    outputs = [bytearray(), bytearray()]
    others_until = math.inf
    with selectors.PollSelector() as selector, closing_descriptor(_end_of(process)) as end:
        selector.register(end, selectors.EVENT_READ)
        for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True):
            selector.register(cast(IO[bytes], pipe), selectors.EVENT_READ, output)
        if process.stdin is not None:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map().keys() - {end}:
            now = time.monotonic()
            if until is not None and now >= until:
                raise subprocess.TimeoutExpired(process.args, cast(float, timeout_s))
            if now >= others_until:
                kill_group(process)
                _close_pipes(process)
                break
            next_s = min(others_until, math.inf if until is None else until) - now
            for key, _ in selector.select(None if next_s == math.inf else next_s):
                if key.fd == end:
                    others_until = time.monotonic() + _OTHERS_S
                    selector.unregister(end)
                    continue
                left, is_done = _pass_on(key, left)
                if is_done:
                    selector.unregister(key.fileobj)
                    cast(IO[bytes], key.fileobj).close()
            if sum(map(len, outputs)) > most_bytes:
                raise OutputLimitError(
                    f"{process.args!r} wrote more than {most_bytes} bytes and was ended"
                )
    process.wait(None if until is None else max(0.0, until - time.monotonic()))
    stdout, stderr = map(bytes, outputs)
    return stdout, stderr


def _pass_on(key: selectors.SelectorKey, left: memoryview) -> tuple[memoryview, bool]:
    """Write to an input, or read from an output; return what is left to write, and whether the pipe
    is done with.
    """
    if key.data is None:
        left = left[_written(key.fd, left) :]
        return left, not left
    chunk = os.read(key.fd, _CHUNK_BYTES)
    key.data.extend(chunk)
    return left, not chunk


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that is readable when a process has ended; one that never is where the
    kernel has none (Linux 5.3 brought it).
    """
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        return os.eventfd(0)


def _written(descriptor: int, data: memoryview) -> int:
    """Write what a pipe that can be written takes without waiting; return how much was written, or
    is not wanted.
    """
    try:
        return os.write(descriptor, data[: select.PIPE_BUF])
    except BrokenPipeError:
        return len(data)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
        with suppress(OSError):
            pipe.close()


def stream_process(
    args: Sequence[str],
    *,
    on_line: Callable[[str], None],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    before_kill: Callable[[int], None] | None = None,
) -> ProcessResult:
    """Run a program and hand each line of its merged output to ``on_line`` while it runs.

    Args:
        args: argv.
        on_line: called with each line, without its line end.
        cwd: working directory; None means this process's.
        env: whole environment; None as for :func:`spawn`.
        before_kill: called with its pid before it is killed, for any reason.

    Raises:
        FileNotFoundError: the program or ``cwd`` does not exist.
    """
    process = spawn(args, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=cwd, env=env)
    output = io.BufferedReader(cast(io.RawIOBase, process.stdout))
    _streaming.get()[process] = before_kill
    tail: deque[bytes] = deque(maxlen=400)
    try:
        for line in output:
            tail.append(line)
            on_line(line.decode(errors="replace").rstrip("\r\n"))
        process.wait()
    except BaseException:
        # A program whose output nobody reads is killed by SIGPIPE or blocks, and so cannot clean up
        # after itself.
        threading.Thread(target=_discard, args=(output,), daemon=True).start()
        _kill_after(process, before_kill)
        process.wait()
        raise
    finally:
        _streaming.get().pop(process, None)
    output.close()
    kept = b"".join(tail)[-_TAIL_BYTES:]
    return ProcessResult(args=tuple(args), exit_code=process.returncode, stdout=b"", stderr=kept)


def _discard(output: IO[bytes]) -> None:
    with output:
        for _ in output:
            pass


def end_streams() -> None:
    """Kill every program that :func:`stream_process` runs now, in any thread, such as builds and
    pulls.
    """
    for process, before_kill in tuple(_streaming.get().items()):
        _kill_after(process, before_kill)


def _kill_after(
    process: subprocess.Popen[bytes], before_kill: Callable[[int], None] | None
) -> None:
    try:
        if before_kill is not None:
            before_kill(process.pid)
    finally:
        kill_group(process)


def spawn(
    args: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own with unbuffered pipes; the caller must reap it.

    Args:
        args: argv.
        stdin: as for ``subprocess.Popen``, like stdout and stderr.
        stdout: see stdin.
        stderr: see stdin.
        cwd: working directory; None means this process's.
        env: whole environment; None means this process's, as
            :func:`~hyperruntime.host.inherited.shell_environment` returns it.
        pass_fds: descriptors that it inherits.

    Raises:
        FileNotFoundError: the program or ``cwd`` does not exist.
    """
    return subprocess.Popen(
        list(args),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=shell_environment(os.environ) if env is None else dict(env),
        start_new_session=True,
        bufsize=0,
        pass_fds=pass_fds,
    )


def spawn_attached(args: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program in ``/`` for a :class:`ProcessShell`, with all signals and the limit on open
    files as they were.

    For drivers whose engine passes our ignored signals and limits on to the processes of a
    container.

    Args:
        args: argv.
        env: whole environment.

    Raises:
        FileNotFoundError: the program does not exist.
    """
    if shutil.which(args[0], path=env.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])
    args = file_limit_args(args)
    if not ignored_signals():
        return spawn(args, stderr=STDOUT, cwd="/", env=env)
    return spawn(default_signals_args(args, env), stderr=STDOUT, cwd="/", env=os.environ)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process made by :func:`spawn` with its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def reap(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Wait at most ``timeout_s`` for a process; return its exit code, or None if it still runs."""
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None


def boot_id() -> str:
    """Return the id of the machine's current boot, or "" if the kernel does not report it. Source:
    random(4).
    """
    return read_proc("sys", "kernel/random/boot_id").decode().strip()


def pid_namespace(pid: int | str = "self") -> int:
    """Return the inode of a process's pid namespace, or 0 if unknown. Source: namespaces(7)."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def process_start_ticks(pid: int | str) -> int | None:
    """Return the start of a process in clock ticks since boot, or None if it does not exist or is a
    zombie.

    Together with pid, boot id and pid namespace it identifies a process uniquely. Clock changes do
    not affect it. Source: proc(5), fields 3 and 22 of ``/proc/PID/stat``.
    """
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def is_alive(pid: int, start_ticks: int) -> bool:
    """Return whether a process still runs; a zombie does not.

    Args:
        pid: pid of the process.
        start_ticks: its start in clock ticks since boot, because pids are reused.
    """
    started = process_start_ticks(pid)
    if started is not None or pid <= 0:
        return started == start_ticks
    return not os.path.exists(f"/proc/{pid}") and _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return whether a process of another user exists that ``/proc`` hides (mount option
    ``hidepid``).
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def read_proc(pid: int | str, name: str) -> bytes:
    """Return the content of a file in ``/proc``; empty if it does not exist or may not be read.

    Args:
        pid: the process, or the name of another directory in ``/proc``.
        name: path of the file below it.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def overload() -> float:
    """Return how many times slower than an idle machine this one is, from 1 to `MOST_OVERLOAD`: its
    runnable processes per CPU.

    Source: proc(5): the fourth field of ``/proc/loadavg`` begins with the number of runnable
    processes and threads.
    """
    runnable = int(read_proc("", "loadavg").split()[3].partition(b"/")[0])
    return min(MOST_OVERLOAD, max(1.0, runnable / (os.cpu_count() or 1)))


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.01) -> bool:
    """Poll a condition until it holds or the time is up; return whether it holds.

    Args:
        condition: called at least once.
        timeout_s: seconds to poll.
        interval_s: seconds between two calls.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


class ProcessShell:
    """An attached shell that is a process of the engine's command line; most drivers return it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Take over a process whose input and output are pipes; ``stderr=STDOUT`` saves one.

        Raises:
            ValueError: a pipe is missing, or ``stderr`` has a pipe of its own.
        """
        if process.stdin is None or process.stdout is None or process.stderr is not None:
            raise ValueError("an attached shell needs stdin=PIPE, stdout=PIPE and stderr=STDOUT")
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.input = self._stdin.fileno()
        self.output = self._stdout.fileno()
        os.set_blocking(self.output, False)

    def read(self) -> bytes:
        """Return the next output; see :class:`~hyperruntime.attached_shell.AttachedShell`."""
        return os.read(self.output, _TAIL_BYTES)

    def close_input(self) -> None:
        """Let the shell read end-of-file."""
        self._stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the process still runs."""
        return reap(self._process, timeout_s)

    def close(self) -> None:
        """Kill the attached process if it still runs; the reader of its output sees end-of-file."""
        self.close_input()
        if self._process.poll() is None:
            kill_group(self._process)
            self._process.wait()

    def close_output(self) -> None:
        """Close the output descriptor; call it when no thread reads it."""
        self._stdout.close()
