"""Connect to the same Docker daemon as the ``docker`` command, and translate the SDK's errors.

This is the only module that creates clients. It imports the SDK when a client is first needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hyperruntime.concurrency.per_process import LockedDict, PerProcess
from hyperruntime.errors import (
    EngineError,
    EngineLateError,
    EngineUnavailableError,
    HyperRuntimeError,
)
from hyperruntime.host.engine_limits import limit_s, note_duration
from hyperruntime_docker.args import NAME

DEFAULT_SOCKET = "/var/run/docker.sock"
INSTALL_HINT = (
    "install it, on Debian with `apt-get install docker.io`, and start the daemon (`systemctl "
    "start docker`)"
)
REMOTE_HINT = (
    "use a daemon of this machine: unset DOCKER_HOST, or `docker context use default`, or "
    "another runtime"
)
_NO_ANSWER = (
    "the daemon did not answer in time; if `docker info` does not either, restart the daemon"
)
_LONG_TIMEOUT_S = 3600


class Engine:
    """Creates and caches clients of one daemon; safe to use from many threads and after a fork."""

    def __init__(self) -> None:
        """Create an engine without a connection."""
        self._clients: PerProcess[LockedDict[bool, Any]] = PerProcess(LockedDict)  # by patience

    def api(self, *, patient: bool = False) -> Any:  # noqa: ANN401 - the SDK is untyped
        """Return the SDK's low-level client.

        Args:
            patient: wait an hour for an answer, which a build may need; otherwise as long as any
                call.

        Raises:
            EngineUnavailableError: no daemon answers, or it is on another machine.
        """
        clients = self._clients.get()  # connections are not shared with a forked child
        with clients.lock:
            if patient not in clients:
                client = clients[patient] = connect(_LONG_TIMEOUT_S)
                if not patient:
                    client.api.hooks["response"].append(_note_answer)
            api = clients[patient].api
            if not patient:
                api.timeout = limit_s(NAME, "call")  # the SDK reads it for each request
            return api

    def close(self) -> None:
        """Close the connections; idempotent."""
        clients = self._clients.get()
        with clients.lock:
            ours = list(clients.values())
            clients.clear()
        for client in ours:
            client.close()


def _note_answer(response: Any, **_: object) -> None:  # noqa: ANN401 - requests.Response
    """Learn how long the daemon took for an answer."""
    note_duration(NAME, "call", response.elapsed.total_seconds())


def connect(timeout_s: int) -> Any:  # noqa: ANN401 - the SDK is untyped
    """Return a client of the daemon that DOCKER_HOST or the current context names.

    Args:
        timeout_s: the deadline of each request, in seconds.

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
        EngineUnavailableError: the requested context does not exist (the SDK would silently use the
            default one).
    """
    if host := os.environ.get("DOCKER_HOST"):
        return host
    from docker.context import ContextAPI

    if ContextAPI.get_context(name := os.environ.get("DOCKER_CONTEXT")) is None:
        why = (
            f"the context {name!r} does not exist" if name else "its current context does not exist"
        )
        raise EngineUnavailableError(
            NAME, why, "choose one of `docker context ls` by DOCKER_CONTEXT"
        )
    return str(ContextAPI.kwargs_from_context().get("base_url") or f"unix://{DEFAULT_SOCKET}")


def endpoint_or_default() -> str:
    """Return the daemon's URL, or the default one if the contexts are invalid."""
    from docker.errors import DockerException

    try:
        return endpoint()
    except (DockerException, EngineUnavailableError):
        return f"unix://{DEFAULT_SOCKET}"


def refuse_remote(where: str) -> None:
    """Raise for a daemon that is reached by ssh or TLS: its streams and files are not this
    machine's.

    Raises:
        EngineUnavailableError: the URL uses ssh or TLS.
    """
    scheme = where.partition("://")[0]
    if scheme == "ssh":
        raise EngineUnavailableError(
            NAME, f"its daemon is on another machine ({where})", REMOTE_HINT
        )
    if scheme == "https" or os.environ.get("DOCKER_TLS_VERIFY"):
        why = (
            f"its daemon is reached by TLS ({where}), but shells attach through a local socket only"
        )
        raise EngineUnavailableError(NAME, why, REMOTE_HINT)


def check_socket(where: str) -> None:
    """Try to connect to a local socket; the SDK would hide the reason of a failure and leave its
    own socket open.

    Raises:
        EngineUnavailableError: no daemon listens, or this user may not connect.
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
    """Return the error for a daemon that does not answer.

    Args:
        text: the text of the original error, with the description of its errno.
        where: the daemon's URL.
    """
    path = where.removeprefix("unix://")
    if "Permission denied" in text:
        step = (
            "ask the administrator to add this user to the group `docker` (equivalent to root), "
            "or use Podman"
        )
        return EngineUnavailableError(NAME, f"this user may not use {path}", step)
    if "No such file" in text or "Connection refused" in text or "timed out" in text:
        step = f"start it (`systemctl start docker`, or `dockerd` as root), or {INSTALL_HINT}"
        return EngineUnavailableError(NAME, f"no daemon answers at {where}", step)
    return EngineUnavailableError(
        NAME, f"its daemon at {where} cannot be used: {text}", "see `docker info`"
    )


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate errors of the SDK and its transport into ours, with the daemon's text.

    Args:
        what: the start of the message of an EngineError, such as "containers cannot be listed".

    Raises:
        EngineUnavailableError: the connection to the daemon failed.
        EngineLateError: the daemon did not answer in time.
        EngineError: the daemon refused.
    """
    from docker.errors import APIError, DockerException
    from requests.exceptions import ConnectionError as Gone
    from requests.exceptions import ReadTimeout, RequestException

    try:
        yield
    except HyperRuntimeError:
        raise
    except APIError as error:
        raise EngineError(f"{what}: {said(error)}") from error
    except Gone as error:
        raise unreachable(str(error), endpoint_or_default()) from error
    except ReadTimeout as error:
        note_duration(NAME, "call", limit_s(NAME, "call"))
        raise EngineLateError(f"{what}: {_NO_ANSWER}") from error
    except (DockerException, RequestException) as error:
        raise EngineError(f"{what}: {error}") from error


def said(error: Any) -> str:  # noqa: ANN401 - APIError
    """Return the daemon's text in an error."""
    return str(getattr(error, "explanation", None) or error).strip()
