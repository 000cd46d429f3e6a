"""End programs with this process: also if it is killed, and also the programs that they started.

One ``sh`` per process, the keeper, waits at a pipe of it. A program to end carries a mark in its
environment, which its children inherit. When the process is gone, the keeper reads end-of-file and
kills every process that has the mark.
"""

from __future__ import annotations

import atexit
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import StorageError
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.process import (
    DEVNULL,
    ProcessLimits,
    ProcessResult,
    reap,
    run_process,
    spawn,
)

MARK = "HYPERRUNTIME_KEEPER"
# It looks again, because a program may just be starting another one.
_SCRIPT = """
read -r word && [ "$word" = done ] && exit 0
rounds=3
while [ "$rounds" -gt 0 ]; do
    rounds=$((rounds - 1))
    for found in $(grep -lsF -- "$1" /proc/[0-9]*/environ); do
        found=${found#/proc/}
        kill -KILL "${found%/environ}" && rounds=3
    done
    sleep 1
done
"""


class Keeper:
    """The keeper of this process.

    Attributes:
        mark: value of the variable ``MARK`` in the environment of the programs to end.
        running: the number of these programs.
    """

    def __init__(self) -> None:
        """Start it.

        Raises:
            StorageError: no process can be started.
        """
        self.mark = secrets.token_hex(16)
        self.running = 0
        args = ["/bin/sh", "-c", _SCRIPT, "hyperruntime-keeper", f"{MARK}={self.mark}"]
        try:
            self._process = spawn(args, stdout=DEVNULL, stderr=DEVNULL, cwd="/")
        except OSError as error:
            raise StorageError(
                f"no keeper of programs can be started: {error}; end other processes"
            ) from error
        release_on_fork(self)

    @property
    def is_alive(self) -> bool:
        """Whether it still waits."""
        return self._process.poll() is None

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptor of its pipe, if it is open."""
        stdin = self._process.stdin
        return () if stdin is None or stdin.closed else (stdin.fileno(),)

    def close(self) -> None:
        """End it; it looks for programs only if some are still running."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(OSError):
                stdin.write(b"" if self.running else b"done\n")
            stdin.close()
        if not self.running:
            reap(self._process, 5)


class _Programs:
    """The programs of this process that end with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keeper: Keeper | None = None

    def begin(self) -> Keeper:
        """Return the keeper, and count one more program."""
        with self._lock:
            if self._keeper is None:
                atexit.register(self._close)
            if self._keeper is None or not self._keeper.is_alive:
                self._keeper = Keeper()
            self._keeper.running += 1
            return self._keeper

    def end(self, keeper: Keeper) -> None:
        """Count one program less."""
        with self._lock:
            keeper.running -= 1

    def _close(self) -> None:
        if self._keeper is not None and _programs.get() is self:
            self._keeper.close()


_programs = PerProcess(_Programs)  # a keeper does not wait for the end of a forked child


def run_kept(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    input: bytes | None = None,  # noqa: A002 - the process seam's own word
    timeout_s: float,
    limits: ProcessLimits,
) -> ProcessResult:
    """Run a program as :func:`~hyperruntime.host.process.run_process` does; it and its children end
    with this process.

    Args:
        args: argv.
        env: whole environment.
        input: data for its standard input; None means an empty one.
        timeout_s: seconds it may take.
        limits: of its memory and output.

    Raises:
        FileNotFoundError: the program does not exist.
        OutputLimitError: it wrote too much and was killed with its process group.
        StorageError: the keeper cannot be started.
        TimeoutError: it ran longer than ``timeout_s`` and was killed with its process group.
    """
    programs = _programs.get()
    keeper = programs.begin()
    try:
        return run_process(
            args, input=input, env={**env, MARK: keeper.mark}, timeout_s=timeout_s, limits=limits
        )
    finally:
        programs.end(keeper)
