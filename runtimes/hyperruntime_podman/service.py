"""Run a private ``podman system service`` for podman-py; it starts when it is first needed.

The service ends after 5 idle seconds. It also ends with its input, which only this process holds,
so it does not outlive a killed owner.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hyperruntime.errors import EngineError, EngineUnavailableError
from hyperruntime.host.engine_limits import engine_call, limit_s, note_duration
from hyperruntime.host.engine_program import program_needed
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.process import (
    PIPE,
    HostProcess,
    find_program,
    kill_group,
    last_line,
    spawn,
    wait_until,
)
from hyperruntime_podman.args import NAME
from hyperruntime_podman.edge import INSTALL_HINT, environment, store_step, translated

_IDLE_S = 5
# A second process waits for the end of the input and then ends the process group.
_KEEPER = 'exec 3<&0; { read -r word; kill -KILL 0; } <&3 & exec "$@" 3<&- </dev/null'
T = TypeVar("T")


class PodmanService:
    """Calls functions with a podman-py client; safe to use from many threads."""

    def __init__(self, make_directory: Callable[[], str]) -> None:
        """Create a service that is not running.

        Args:
            make_directory: makes a private directory for the socket, with a short and plain path.
        """
        self._lock = threading.Lock()
        self._make_directory = make_directory
        self._directory: str | None = None
        self._process: HostProcess | None = None
        self._users, self._end = 0, threading.Timer(_IDLE_S, self._stop_unused)
        self._pid = os.getpid()

    def call(self, what: str, function: Callable[[Any], T]) -> T:
        """Return ``function(client)``; the service does not end during the call, and no request is
        sent twice.

        Args:
            what: the start of the message of an error, such as "images cannot be listed".
            function: called once with the podman-py client.

        Raises:
            EngineUnavailableError: the service does not start.
            EngineError: Podman refused, or this is a forked child of the process that opened the
                runtime.
        """
        from podman import PodmanClient

        if os.getpid() != self._pid:
            raise EngineError(
                f"{what}: this runtime belongs to the parent of this process; open another one here"
            )
        with (
            translated(what),
            self._held() as url,
            engine_call(NAME, "answer") as answer_s,
            PodmanClient(base_url=url, timeout=answer_s) as client,
        ):
            return function(client)

    def close(self) -> None:
        """End the service; idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._end.cancel()
            self._stop()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptor that keeps the service alive; a forked child must not hold it."""
        process = self._process
        return () if process is None or process.stdin is None else (process.stdin.fileno(),)

    @contextmanager
    def _held(self) -> Iterator[str]:
        """Yield the URL of the service, which runs until the end of the block and 5 seconds
        longer.
        """
        with self._lock:
            self._end.cancel()
            if self._process is None or self._process.poll() is not None:
                self._stop()
                self._start()
            self._users += 1
        try:
            yield f"unix://{self._path('s')}"
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._end = threading.Timer(_IDLE_S, self._stop_unused)
                    self._end.daemon = True
                    self._end.start()

    def _stop_unused(self) -> None:
        with self._lock:
            if not self._users:
                self._stop()

    def _start(self) -> None:
        if self._directory is None or not os.path.isdir(self._directory):
            self._directory = self._make_directory()
        if find_program(NAME) is None:
            raise EngineUnavailableError(NAME, "there is no `podman` on PATH", INSTALL_HINT)
        Path(self._path("s")).unlink(missing_ok=True)
        args = ["podman", "system", "service", "--time", "0", f"unix://{self._path('s')}"]
        keeper = ["/bin/sh", "-c", _KEEPER, "keeper", *args]
        with open(self._path("log"), "wb") as log, program_needed(NAME, NAME, INSTALL_HINT):
            process = self._process = spawn(
                keeper, stdin=PIPE, stdout=log, stderr=log, cwd="/", env=environment()
            )
        release_on_fork(self)
        started = time.monotonic()
        wait_until(lambda: self._answers() or process.poll() is not None, limit_s(NAME, "service"))
        note_duration(NAME, "service", time.monotonic() - started)
        if not self._answers():
            text = Path(self._path("log")).read_text(errors="replace")
            self._stop()
            why = f"its API service does not start: {last_line(text) or 'no message'}"
            raise EngineUnavailableError(NAME, why, store_step(why))

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_group(process)
            process.communicate()

    def _path(self, name: str) -> str:
        assert self._directory is not None
        return os.path.join(self._directory, name)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._path("s"))
            except OSError:
                return False
        return True
