"""A private ``podman system service`` for podman-py: started on first need, gone with its owner.

The service ends by itself after some idle seconds, so nothing is left even when the owner is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hyperruntime.errors import EngineError, EngineUnavailableError
from hyperruntime.process import DEVNULL, HostProcess, kill_group, reap, spawn, wait_until
from hyperruntime_podman.args import NAME
from hyperruntime_podman.edge import environment, program_needed, translated

_IDLE_S = 5
_START_TIMEOUT_S = 30.0
T = TypeVar("T")


class PodmanService:
    """Hands out podman-py clients; safe to use from many threads."""

    def __init__(self, make_directory: Callable[[], str]) -> None:
        """Start nothing yet.

        Args:
            make_directory: makes a private directory for the socket, with a short and plain path.
        """
        self._lock = threading.Lock()
        self._make_directory = make_directory
        self._directory: str | None = None
        self._process: HostProcess | None = None
        self._pid = os.getpid()

    def call(self, what: str, function: Callable[[Any], T]) -> T:
        """Return ``function(client)``; a service that ended while idle is started again.

        Args:
            what: what cannot be done when this fails.
            function: asks the client for something.

        Raises:
            EngineUnavailableError: the service does not start.
            EngineError: Podman refused, or this is a forked child of the process that opened the runtime.
        """
        from podman import PodmanClient
        from requests.exceptions import ConnectionError as Refused

        if os.getpid() != self._pid:
            raise EngineError(f"{what}: this runtime belongs to the parent of this process; open another one here")
        with translated(what):
            for attempt in (1, 2):
                try:
                    with PodmanClient(base_url=f"unix://{self._socket()}", timeout=600) as client:
                        return function(client)
                except (Refused, ConnectionError):
                    if attempt == 2:
                        raise
        raise AssertionError

    def close(self) -> None:
        """End the service; may be called again, and does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stop()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _socket(self) -> str:
        with self._lock:
            if self._process is None or reap(self._process, 0) is not None:
                self._stop()
                self._start()
            return self._path("s")

    def _start(self) -> None:
        if self._directory is None or not os.path.isdir(self._directory):
            self._directory = self._make_directory()
        Path(self._path("s")).unlink(missing_ok=True)
        args = ["podman", "system", "service", "--time", str(_IDLE_S), f"unix://{self._path('s')}"]
        with open(self._path("log"), "wb") as log, program_needed():
            process = self._process = spawn(args, stdin=DEVNULL, stdout=log, stderr=log, cwd="/", env=environment())
        wait_until(lambda: self._answers() or process.poll() is not None, _START_TIMEOUT_S)
        if not self._answers():
            text = Path(self._path("log")).read_text(errors="replace").strip().splitlines()
            self._stop()
            why = f"its API service does not start: {text[-1] if text else 'no message'}"
            raise EngineUnavailableError(NAME, why, "see `hyperrun doctor`")

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
