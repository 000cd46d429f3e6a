"""The connection to a Docker daemon: found as the ``docker`` command finds it, with its errors made ours.

The only module that makes clients. The SDK is imported when a client is first needed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hyperruntime.errors import EngineError, EngineUnavailableError, HyperRuntimeError
from hyperruntime_docker.args import NAME

DEFAULT_SOCKET = "/var/run/docker.sock"
INSTALL_HINT = "install it, on Debian with `apt-get install docker.io`, and start the daemon (`systemctl start docker`)"
REMOTE_HINT = "use a daemon of this machine: unset DOCKER_HOST, or `docker context use default`, or another runtime"
_CONNECT_TIMEOUT_S = 20
_LONG_TIMEOUT_S = 3600


class Engine:
    """Hands out clients of one daemon; safe to use from many threads, and after a fork."""

    def __init__(self) -> None:
        """Connect to nothing yet."""
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, bool], Any] = {}

    def api(self, *, patient: bool = False) -> Any:  # noqa: ANN401 - the SDK is untyped
        """Return the SDK's low-level client; ``patient`` waits an hour for an answer, as a build may need.

        Raises:
            EngineUnavailableError: no daemon answers, or it is on another machine.
        """
        key = (os.getpid(), patient)  # connections are not shared with a forked child
        with self._lock:
            if key not in self._clients:
                self._clients[key] = connect(_LONG_TIMEOUT_S if patient else _CONNECT_TIMEOUT_S)
            return self._clients[key].api

    def close(self) -> None:
        """Close the connections; may be called again."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for (pid, _), client in clients.items():
            if pid == os.getpid():
                client.close()


def connect(timeout_s: int) -> Any:  # noqa: ANN401 - the SDK is untyped
    """Return a client of the daemon that DOCKER_HOST or the current context names.

    Raises:
        EngineUnavailableError: no daemon answers, or it is on another machine.
    """
    from docker import from_env
    from docker.errors import DockerException

    try:
        where = endpoint()
        refuse_remote(where)
        check_socket(where)
        return from_env(timeout=timeout_s)
    except DockerException as error:
        raise unreachable(str(error), endpoint_or_default()) from error


def endpoint() -> str:
    """Return the URL of the daemon that will be used.

    Raises:
        EngineUnavailableError: the context that is asked for does not exist; the SDK would take the default one.
    """
    if host := os.environ.get("DOCKER_HOST"):
        return host
    from docker.context import ContextAPI

    if ContextAPI.get_context(name := os.environ.get("DOCKER_CONTEXT")) is None:
        why = f"there is no context {name!r}" if name else "its current context does not exist"
        raise EngineUnavailableError(NAME, why, "see `docker context ls`, and `docker context use` or DOCKER_CONTEXT")
    return str(ContextAPI.kwargs_from_context().get("base_url") or f"unix://{DEFAULT_SOCKET}")


def endpoint_or_default() -> str:
    """Return the daemon's URL, whatever is wrong with contexts."""
    from docker.errors import DockerException

    try:
        return endpoint()
    except (DockerException, EngineUnavailableError):
        return f"unix://{DEFAULT_SOCKET}"


def refuse_remote(where: str) -> None:
    """Refuse a daemon whose streams or files cannot be this machine's.

    Raises:
        EngineUnavailableError: it is reached by ssh or TLS.
    """
    scheme = where.partition("://")[0]
    if scheme == "ssh":
        raise EngineUnavailableError(NAME, f"its daemon is on another machine ({where})", REMOTE_HINT)
    if scheme == "https" or os.environ.get("DOCKER_TLS_VERIFY"):
        why = f"its daemon is reached by TLS ({where}), and a shell is attached through a local socket only"
        raise EngineUnavailableError(NAME, why, REMOTE_HINT)


def check_socket(where: str) -> None:
    """Try a local socket first: the SDK hides the reason, and leaves its own socket open.

    Raises:
        EngineUnavailableError: nobody listens, or this user may not connect.
    """
    if not where.startswith("unix://"):
        return
    path = where.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as attempt:
        try:
            attempt.connect(path)
        except OSError as error:
            raise unreachable(str(error), where) from error


def unreachable(text: str, where: str) -> EngineUnavailableError:
    """Return the error for a daemon that does not answer. Source: errno names in what requests reports."""
    path = where.removeprefix("unix://")
    if "Permission denied" in text:
        step = "ask the administrator to add this user to the group `docker` (which is as good as root), or use Podman"
        return EngineUnavailableError(NAME, f"this user may not use {path}", step)
    if "No such file" in text or "Connection refused" in text or "timed out" in text:
        step = f"start it (`systemctl start docker`, or `dockerd` as root), or {INSTALL_HINT}"
        return EngineUnavailableError(NAME, f"no daemon answers at {where}", step)
    return EngineUnavailableError(NAME, f"its daemon at {where} cannot be used: {text}", "see `docker info`")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the SDK's and its transport's errors into ours, with what the daemon says.

    Raises:
        EngineUnavailableError: the daemon went away.
        EngineError: it refused.
    """
    from docker.errors import APIError, DockerException
    from requests.exceptions import ConnectionError as Gone
    from requests.exceptions import RequestException

    try:
        yield
    except HyperRuntimeError:
        raise
    except APIError as error:
        raise EngineError(f"{what}: {said(error)}") from error
    except Gone as error:
        raise unreachable(str(error), endpoint_or_default()) from error
    except (DockerException, RequestException) as error:
        raise EngineError(f"{what}: {error}") from error


def said(error: Any) -> str:  # noqa: ANN401 - APIError
    """Return the daemon's own words in an error."""
    return str(getattr(error, "explanation", None) or error).strip()


def is_status(error: Any, *codes: int) -> bool:  # noqa: ANN401 - APIError
    """Tell whether the daemon answered with one of some HTTP status codes."""
    return getattr(error, "status_code", None) in codes
