"""A private ``podman system service`` for podman-py: started on first need, gone with its owner.

The service ends by itself after some idle seconds, so nothing is left even when the owner is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hyperruntime.errors import EngineUnavailableError
from hyperruntime.process import DEVNULL, HostProcess, find_program, kill_group, reap, spawn, wait_until
from hyperruntime_podman.args import NAME
from hyperruntime_podman.probe import INSTALL_HINT

_IDLE_S = 5
_START_TIMEOUT_S = 30.0
_MAX_SOCKET_PATH = 100  # sockaddr_un has room for 108; source: unix(7)
T = TypeVar("T")


class PodmanService:
    """Hands out podman-py clients; safe to use from many threads."""

    def __init__(self, directory: str) -> None:
        """Start nothing yet; the socket will be in ``directory``."""
        self._lock = threading.Lock()
        self._directory = directory
        self._short: str | None = None
        self._process: HostProcess | None = None

    def call(self, function: Callable[[Any], T]) -> T:
        """Return ``function(client)``; a service that ended while idle is started again.

        Raises:
            EngineUnavailableError: the service does not start.
        """
        from podman import PodmanClient
        from requests.exceptions import ConnectionError as Refused

        for attempt in (1, 2):
            try:
                with PodmanClient(base_url=f"unix://{self._socket()}", timeout=600) as client:
                    return function(client)
            except (Refused, ConnectionError):
                if attempt == 2:
                    raise
        raise AssertionError

    def close(self) -> None:
        """End the service; may be called again."""
        with self._lock:
            self._stop()
            if self._short is not None:
                shutil.rmtree(self._short, ignore_errors=True)
                self._short = None

    def _socket(self) -> str:
        with self._lock:
            if self._process is None or reap(self._process, 0) is not None:
                self._stop()
                self._start()
            return self._path("s")

    def _start(self) -> None:
        if find_program("podman") is None:
            raise EngineUnavailableError(NAME, "there is no `podman` on PATH", INSTALL_HINT)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        if len(os.fsencode(self._path("s"))) > _MAX_SOCKET_PATH and self._short is None:
            self._short = tempfile.mkdtemp(prefix="hyperruntime-api-", dir=_short_directory())
        Path(self._path("s")).unlink(missing_ok=True)
        args = ["podman", "system", "service", "--time", str(_IDLE_S), f"unix://{self._path('s')}"]
        with open(self._path("log"), "wb") as log:
            process = self._process = spawn(args, stdin=DEVNULL, stdout=log, stderr=log, cwd="/")
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
        return os.path.join(self._short or self._directory, name)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._path("s"))
            except OSError:
                return False
        return True


def _short_directory() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return runtime if os.access(runtime, os.W_OK) and len(runtime) < 40 else "/tmp"  # noqa: S108 - made private
