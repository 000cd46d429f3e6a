"""Give a container access to the gateway: a socket in its exchange directory, the forwarder,
environment variables.

The image needs only Python 3.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    GatewayError,
    HyperRuntimeError,
)
from hyperruntime.gateway.config.values import Budget
from hyperruntime.gateway.log.budget import Meter
from hyperruntime.gateway.seat import SOCKET_NAME, Seat, Seats
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.ports.forward import PYTHON_ARGS, forwarder_program
from hyperruntime.secrets.env_file import MODEL_CLIENTS

if TYPE_CHECKING:
    from hyperruntime.container import Container

log = get_logger(__name__)

_START_S = 20.0
_MOST_BYTES = 64  # of the line with the port
_PORT = re.compile(rb"[0-9]{1,5}\n")


class Access(Closing):
    """A container's access to the gateway.

    Attributes:
        seat: the container's seat, with its usage and its budget.
        port: the forwarder's port on 127.0.0.1 in the container.

    Example:
        >>> upstream = hr.Upstream(name="local", url="http://127.0.0.1:8000/v1")
        >>> rule = hr.ModelRule(name="*", upstream="local")
        >>> gateway = hr.Gateway(hr.GatewayConfig(upstreams=[upstream], models=[rule]))
        >>> with gateway, runtime.container(spec) as container:
        ...     with hr.Access(gateway, container, "agent", hr.Budget(requests=9)) as access:
        ...         "OPENAI_BASE_URL" in access.env
        True
    """

    def __init__(
        self, gateway: Seats, container: Container, name: str, budget: Budget | Meter | None = None
    ) -> None:
        """Open a seat for the container, and start the forwarder in it.

        Args:
            gateway: the gateway that serves the container, or a proxy for one on another machine.
            container: a running container; it needs no network.
            name: the name of the seat in the log.
            budget: the budget of this container, in addition to the run's; or a meter that several
                containers share.

        Raises:
            GatewayError: the image has no Python 3, the forwarder does not start, or the seat
                cannot be opened.
            SpecError: the name is malformed.
        """
        self._container = container
        self._started = threading.Event()
        self._closing = False
        self._output = b""
        self._ended = ""
        exchange = container.exchange
        self.seat: Seat = gateway.seat(name, exchange.source, budget)
        self._socket = posixpath.join(exchange.target, SOCKET_NAME)
        self._thread = threading.Thread(
            target=self._run, name="hyperruntime-forwarder", daemon=True
        )
        self._thread.start()
        start_s = _START_S * overload()
        self._started.wait(start_s)
        if not _PORT.fullmatch(self._output):
            why = self._ended or (
                "its python3 is another program" if self._started.is_set() else ""
            )
            why = why or f"it did not start within {start_s:g} s"
            self.close()
            raise GatewayError(f"the forwarder does not run in {container.spec.image!r}: {why}")
        self.port = int(self._output)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables for the clients of all formats; they hold the seat's token and
        no API key.
        """
        base = f"http://127.0.0.1:{self.port}"
        env: dict[str, str] = {}
        for clients in MODEL_CLIENTS:
            env |= dict.fromkeys(clients.urls, base + urlsplit(clients.url).path)
            env[clients.key] = self.seat.token
        return env

    def check(self) -> None:
        """Raise if the gateway cannot serve this container any more.

        Raises:
            BudgetExceededError: a request was refused because a budget is used up.
            GatewayError: the upstream failed the last request; or the forwarder ended, for any
                reason, before ``close``.
        """
        self.seat.check()
        if self._ended and not self._closing:
            raise GatewayError(
                f"the forwarder in {self._container.name} ended: {self._ended}; open a new access"
            )

    def close(self) -> None:
        """Close the seat; the forwarder runs until the container ends. Idempotent."""
        self._closing = True
        self.seat.close()

    def _run(self) -> None:
        try:
            program = forwarder_program()
            result = self._container.exec(
                [*PYTHON_ARGS, self._socket], input=program, on_output=self._heard
            )
        except (ContainerLostError, ContainerStateError, ExecLostError) as error:
            self._ended = str(error)
        except HyperRuntimeError as error:
            self._ended = f"it could not be started: {error}"
        else:
            tail = result.stderr.decode(errors="replace").strip()[-300:]
            self._ended = f"it ended with exit code {result.exit_code}: {tail}"
            if result.not_executed:
                self._ended = (
                    "there is no python3 in the image; use one that has it, such as the base image"
                )
        self._started.set()
        if not self._closing:
            log.debug("forwarder ended", container=self._container.name, why=self._ended)

    def _heard(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout" and not self._started.is_set():
            self._output += chunk[: _MOST_BYTES - len(self._output)]
            if self._output.endswith(b"\n") or len(self._output) >= _MOST_BYTES:
                self._started.set()
