"""Start programs in a user namespace of this user, through one holder process per runtime."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_limits import engine_call, limit_s
from hyperruntime.host.engine_program import namespace_step
from hyperruntime.host.inherited import file_limit_args
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.process import (
    DEVNULL,
    HostProcess,
    kill_group,
    last_line,
    python_args,
    reap,
    spawn,
)
from hyperruntime.layers import holder

_MOST_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 16


@attrs.frozen(kw_only=True)
class Layers:
    """The files of a sandbox: layers that are mounted over each other.

    Attributes:
        directory: paths below may be relative to it: all of them must fit into one page.
        layers: directories that are only read, the highest first.
        upperdir: the directory that takes the changes.
        workdir: an empty directory on the same file system, which the kernel needs.
        at: the mount point; only the sandbox sees the mount.
        program: the path of a program of FUSE that mounts them; "" means that the kernel does.
        image: what is mounted before, see :func:`~hyperruntime.layers.one_file.mount_of`.
    """

    directory: str
    layers: tuple[str, ...]
    upperdir: str
    workdir: str
    at: str
    program: str = ""
    image: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Job:
    """A program to start in the namespace.

    Attributes:
        args: its arguments, with its name.
        program: its path.
        env: its whole environment.
        layers: the layers to mount before; None means none.
        root: the root of its files.
        points: paths that the root of layers, or a copy, must have: directories with a mode, or
            files.
        copied: whether the root is a copy of an image, which nothing else uses.
        read_only: whether the mount of the layers is read-only.
        inside: which arguments are paths below the root, whose links are followed there.
        open: files to open for it, with the descriptors that it expects.
        limits: its limits, by their names in :mod:`resource`.
        joins: the number of the job whose network it has; 0 means that its program sees to that.
        directory: removed when it has ended, with all that is in it.
        record: a file that is removed after that.
    """

    args: tuple[str, ...]
    program: str
    env: Mapping[str, str] = attrs.field(hash=False)
    directory: str
    record: str
    layers: Layers | None = None
    root: str = "/"
    points: Mapping[str, int | None] = attrs.field(factory=dict, hash=False)
    copied: bool = False
    read_only: bool = False
    inside: tuple[int, ...] = ()
    open: tuple[tuple[str, int], ...] = ()
    limits: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    joins: int = 0


class Namespace:
    """A user namespace, and the programs in it. It is made when it is first needed.

    Safe to use from many threads.
    """

    def __init__(self, engine: str, ids: Sequence[str]) -> None:
        """Start nothing.

        Args:
            engine: the driver's name, for errors.
            ids: options of ``unshare`` that map this user's ids; none: programs start without
                namespaces.
        """
        self._engine = engine
        self._ids = tuple(ids)
        self._lock = threading.Lock()  # of the socket for jobs, and of the holder
        self._asking = threading.Lock()
        self._numbers = count(1)
        self._process: HostProcess | None = None
        self._jobs: socket.socket | None = None
        self._control: socket.socket | None = None
        self._errors: BinaryIO | None = None  # of the holder, in memory

    def descriptors(self) -> tuple[int, ...]:
        """Return the sockets that show the holder that its owner is alive."""
        return tuple(one.fileno() for one in (self._jobs, self._control) if one is not None)

    def pid(self) -> int:
        """Return the process id of the holder, which is started if none runs.

        Raises:
            EngineUnavailableError: the namespace cannot be made.
        """
        with self._lock:
            return self._open()[1].pid

    def start(self, job: Job) -> SandboxShell:
        """Start a program with its streams attached, without waiting for it.

        If its files cannot be mounted, it ends at once, and its output says why.

        Raises:
            EngineUnavailableError: the namespace cannot be made.
        """
        number = next(self._numbers)
        layers = None if job.layers is None else attrs.asdict(job.layers, recurse=False)
        facts = {**attrs.asdict(job, recurse=False), "job": number, "layers": layers}
        message = json.dumps(facts).encode()
        stdin, mine_in = os.pipe()
        mine_out, stdout = os.pipe()
        try:
            with self._lock, _file_of(message) as file:
                jobs, process = self._open()
                streams = [stdin, stdout, file.fileno()]
                if job.joins:
                    self._send_joining(job.joins, streams)
                else:
                    socket.send_fds(jobs, [b"job"], streams)
        except BaseException as error:
            os.close(mine_in)
            os.close(mine_out)
            if isinstance(error, OSError):
                raise self._error() from error
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        return SandboxShell(self, process.pid, number, mine_in, mine_out)

    def ask(self, holder_pid: int, verb: str, job: int) -> int | None:
        """Ask the holder to ``kill`` the program of a job, or for its ``code``.

        Returns:
            The exit code of the job's program, once; None while it runs.
        """
        number = next(self._numbers)
        answer: dict[str, Any] = {}
        with self._asking:
            control = self._control
            is_same = self._process is not None and self._process.pid == holder_pid
            if control is None or not is_same:  # the holder of the job has ended
                return -signal.SIGKILL
            try:
                control.send(json.dumps([number, verb, job]).encode())
                while answer.get("to") != number:  # others are answers that came late
                    answer = json.loads(control.recv(_MOST_BYTES))
            except TimeoutError:
                return None
            except (OSError, ValueError):  # the holder has ended, and so all programs
                return -signal.SIGKILL
        code: int | None = answer["code"]
        return code

    def _send_joining(self, job: int, streams: list[int]) -> None:
        """Give the holder a job that joins the network of another one; its answer, which is none,
        comes before later ones.
        """
        with self._asking:
            if self._control is not None:
                message = json.dumps([next(self._numbers), "join", job]).encode()
                socket.send_fds(self._control, [message], streams)

    @property
    def error_text(self) -> str:
        """What the holder wrote last about an error of its own, or ""."""
        if self._errors is None:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), _CHUNK_BYTES, max(0, size - _CHUNK_BYTES))
        return last_line(text.decode(errors="replace"))

    def close(self) -> None:
        """End the holder, which ends all programs and removes their files; wait for that."""
        with self._lock, self._asking:
            self._close_sockets()
            if self._process is not None:
                reap(self._process, limit_s(self._engine, "kill"))
                self._process = None
            if self._errors is not None:
                self._errors.close()
                self._errors = None

    def _close_sockets(self) -> None:
        for one in (self._jobs, self._control):
            if one is not None:
                one.close()
        self._jobs = None
        self._control = None

    def _give_up(self) -> None:
        """End a holder that does not begin."""
        with self._asking:
            self._close_sockets()
        if self._process is not None:
            kill_group(self._process)
            reap(self._process, limit_s(self._engine, "kill"))
            self._process = None

    def _open(self) -> tuple[socket.socket, HostProcess]:
        """Return the socket for jobs and the holder, which is started if none runs. The lock is
        held.
        """
        if self._jobs and self._process is not None and self._process.poll() is None:
            return self._jobs, self._process
        self._errors = self._errors or _file_of(b"")
        jobs, their_jobs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control, their_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_jobs, their_control:
            descriptors = (their_jobs.fileno(), their_control.fileno())
            program = python_args("-I", "-S", holder.__file__, *map(str, descriptors))
            args = [*_unshare(self._ids), *program, *([] if self._ids else ["plain"])]
            self._process = spawn(
                file_limit_args(args),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=self._errors.fileno(),
                cwd="/",
                env={"PATH": os.defpath},
                pass_fds=descriptors,
            )
        with self._asking:
            self._close_sockets()
            self._jobs = jobs
            self._control = control
        release_on_fork(self)
        with engine_call(self._engine, "start") as timeout_s:
            control.settimeout(timeout_s)
            try:
                is_ready = _is_ready(control, self._process.pid, timeout_s)
            except BaseException:
                self._give_up()
                raise
            if not is_ready:
                self._give_up()
                raise self._error()
        return jobs, self._process

    def _error(self) -> EngineUnavailableError:
        what = "no user namespace can be made" if self._ids else "no program can be started"
        why = f"{what}: {self.error_text}"
        return EngineUnavailableError(self._engine, why, namespace_step(why))


def trial_args(job: Job, ids: Sequence[str], path: str) -> list[str]:
    """Write a job to a file; return the argv that does it without a holder, in a namespace of its
    own.

    Args:
        job: the job.
        ids: options of ``unshare`` that map this user's ids; none: without a namespace.
        path: the file.
    """
    Path(path).write_text(json.dumps(attrs.asdict(job)))
    return [*_unshare(ids), *python_args("-I", "-S", holder.__file__, path)]


def _unshare(ids: Sequence[str]) -> list[str]:
    return ["unshare", *ids, "--mount"] if ids else []


def _is_ready(control: socket.socket, pid: int, timeout_s: float) -> bool:
    """Return whether the holder works. Its end counts, because a child of a failed ``unshare`` has
    its socket.

    Raises:
        TimeoutError: it did not answer in time.
    """
    poll = select.poll()
    with closing_descriptor(os.pidfd_open(pid)) as end:
        poll.register(control, select.POLLIN)
        poll.register(end, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
    if not ready:
        raise TimeoutError
    return control.fileno() in ready and control.recv(16) == b"ready"


def _file_of(message: bytes) -> BinaryIO:
    """Return a file in memory: a message of a socket may be at most 200 KB."""
    file = os.fdopen(os.memfd_create("job"), "w+b")
    file.write(message)
    file.flush()
    return file


class SandboxShell:
    """The attached shell of a sandbox; see
    :class:`~hyperruntime.attached_shell.AttachedShell`.
    """

    def __init__(
        self, namespace: Namespace, holder_pid: int, job: int, input_fd: int, output_fd: int
    ) -> None:
        """Take over the descriptors of a job's streams."""
        self._namespace = namespace
        self._holder_pid = holder_pid
        self._code: int | None = None
        self.job = job
        self.input = input_fd
        self.output = output_fd
        os.set_blocking(output_fd, False)

    def read(self) -> bytes:
        """Return the next output."""
        return os.read(self.output, _CHUNK_BYTES)

    def close_input(self) -> None:
        """Let the shell read end-of-file."""
        if self.input >= 0:
            descriptor, self.input = self.input, -1
            os.close(descriptor)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if the shell still runs."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while self._ask("code") is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            # those who have the output end shortly before the holder learns of it
            if self._has_no_writer(min(left_s, 0.02)):
                time.sleep(pause_s)
                pause_s = min(0.02, pause_s * 2)
        return self._code

    def _has_no_writer(self, timeout_s: float) -> bool:
        """Return whether nobody has the other end of the output, or it is closed; wait for that."""
        poll = select.poll()
        try:
            poll.register(self.output, 0)
        except ValueError:  # closed by another thread
            return True
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Kill the sandbox if it still runs, and wait for its end."""
        self.close_input()
        if self._ask("kill") is None:
            self.wait(limit_s("", "kill"))

    def _ask(self, verb: str) -> int | None:
        """Return the exit code if it is known; else ask the holder first."""
        if self._code is None:
            # the holder says it once, maybe to another thread
            code = self._namespace.ask(self._holder_pid, verb, self.job)
            self._code = self._code if code is None else code
        return self._code

    def close_output(self) -> None:
        """Close the output descriptor."""
        if self.output >= 0:
            descriptor, self.output = self.output, -1
            os.close(descriptor)
