"""Run a private ``podman system service`` for podman-py; it starts when it is first needed.

The service ends by itself after 5 idle seconds, so it does not outlive a killed owner.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

from hyperruntime.errors import EngineError, EngineUnavailableError
from hyperruntime.host.engine_program import program_needed
from hyperruntime.host.process import DEVNULL, HostProcess, kill_group, spawn
from hyperruntime_podman.args import NAME
from hyperruntime_podman.edge import INSTALL_HINT, environment, store_step, translated

_IDLE_S = 5
_START_TIMEOUT_S = 30.0
_PING_S = 30.0
_ANSWER_S = 600.0
_STARTS = 3
T = TypeVar("T")


class _Connection(HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_PING_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


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
        self._users, self._idle_since = 0, 0.0
        self._pid = os.getpid()

    def call(self, what: str, function: Callable[[Any], T]) -> T:
        """Return ``function(client)``; the service does not end during the call, and no request is sent twice.

        Args:
            what: the start of the message of an error, such as "images cannot be listed".
            function: called once with the podman-py client.

        Raises:
            EngineUnavailableError: the service does not start.
            EngineError: Podman refused, or this is a forked child of the process that opened the runtime.
        """
        from podman import PodmanClient

        if os.getpid() != self._pid:
            raise EngineError(f"{what}: this runtime belongs to the parent of this process; open another one here")
        with translated(what), self._held() as url, PodmanClient(base_url=url, timeout=_ANSWER_S) as client:
            return function(client)

    def close(self) -> None:
        """End the service; idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stop()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    @contextmanager
    def _held(self) -> Iterator[str]:
        """Yield the service's URL while an open connection keeps it alive: Podman counts idle time without connections.

        A service whose idle time may be over is replaced: it may still answer, but it ends nevertheless.
        """
        with closing(self._hold()):
            try:
                yield f"unix://{self._path('s')}"
            finally:
                with self._lock:
                    self._users -= 1
                    self._idle_since = time.monotonic()

    def _hold(self) -> _Connection:
        why = ""
        with self._lock:
            for attempt in range(1, _STARTS + 1):
                if self._process is None:
                    self._start()
                connection = _Connection(self._path("s"))
                try:
                    connection.request("GET", "/_ping")
                    connection.getresponse().read()
                    in_time = time.monotonic() < self._idle_since + _IDLE_S
                    if in_time or self._users or attempt == _STARTS:  # the last one has just started
                        self._users += 1
                        return connection
                except (OSError, HTTPException) as error:
                    why = f"Podman's API service does not answer: {error}"
                    if self._is_needed(error):
                        connection.close()
                        raise ConnectionError(why) from error
                connection.close()
                self._stop()
        raise ConnectionError(why)

    def _is_needed(self, error: Exception) -> bool:
        """Return whether a service that did not answer must keep running: others use it, or it has no fault."""
        assert self._process is not None
        if self._process.poll() is not None:
            return False
        is_its_own = isinstance(error, (ConnectionError, FileNotFoundError, TimeoutError, HTTPException))
        return bool(self._users) or not is_its_own

    def _start(self) -> None:
        if self._directory is None or not os.path.isdir(self._directory):
            self._directory = self._make_directory()
        Path(self._path("s")).unlink(missing_ok=True)
        args = ["podman", "system", "service", "--time", str(_IDLE_S), f"unix://{self._path('s')}"]
        with open(self._path("log"), "wb") as log, program_needed(NAME, NAME, INSTALL_HINT):
            process = self._process = spawn(args, stdin=DEVNULL, stdout=log, stderr=log, cwd="/", env=environment())
        deadline = (begun := time.monotonic()) + _START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None or begun > deadline:
                text = Path(self._path("log")).read_text(errors="replace").strip().splitlines()
                self._stop()
                why = f"its API service does not start: {text[-1] if text else 'no message'}"
                raise EngineUnavailableError(NAME, why, store_step(why))
            time.sleep(0.01)
            begun = time.monotonic()
        self._idle_since = begun  # Podman's idle time begins after its socket exists

    def _stop(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            self._process.wait()
            self._process = None

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
