"""Give a container access to the gateway: a socket in its exchange directory, the forwarder,
environment variables.

The image needs only Python 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import GatewayError
from hyperruntime.exec.options import ExecOptions
from hyperruntime.gateway.config.values import Budget
from hyperruntime.gateway.log.budget import Meter
from hyperruntime.gateway.seat import SOCKET_NAME, Seat, Seats
from hyperruntime.logs import get_logger
from hyperruntime.ports.forward import Run
from hyperruntime.ports.way_out import WayOut
from hyperruntime.secrets.env_file import MODEL_CLIENTS
from hyperruntime.spec import ExecResult

if TYPE_CHECKING:
    from hyperruntime.container import Container

log = get_logger(__name__)


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
        self._closing = False
        exchange = container.exchange
        self.seat: Seat = gateway.seat(name, exchange.source, budget)
        self._way = WayOut(_runs_in(container), exchange, SOCKET_NAME, note=self._has_ended)
        if not self._way.port:
            self.close()
            raise GatewayError(
                f"the forwarder does not run in {container.spec.image!r}: {self._way.ended}"
            )
        self.port = self._way.port

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
        if self._way.ended and not self._closing:
            raise GatewayError(
                f"the forwarder in {self._container.name} ended: {self._way.ended}; open a new "
                "access"
            )

    def close(self) -> None:
        """Close the seat; the forwarder runs until the container ends. Idempotent."""
        self._closing = True
        self.seat.close()

    def _has_ended(self, why: str) -> None:
        if not self._closing:
            log.debug("forwarder ended", container=self._container.name, why=why)


def _runs_in(container: Container) -> Run:
    def run(args: list[str], options: ExecOptions) -> ExecResult:
        return container.exec(args, input=options.input, on_output=options.on_output)

    return run
