"""A seat: one container's socket, token and meter of a gateway."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Protocol

from hyperruntime.concurrency.closing import Closing
from hyperruntime.concurrency.end_event import EndEvent
from hyperruntime.errors import BudgetExceededError, GatewayError
from hyperruntime.gateway.config.values import Budget
from hyperruntime.gateway.log.budget import Meter, Spent
from hyperruntime.ports import listeners

SOCKET_NAME = "gateway.sock"


class Seats(Protocol):
    """Gives seats to containers: a gateway, or a proxy for a gateway on another machine."""

    def seat(self, name: str, directory: str, budget: Budget | Meter | None = None) -> Seat:
        """Return a new seat, and listen on its socket in ``directory``; see
        :meth:`Gateway.seat`.
        """
        ...

    def drop(self, seat: Seat) -> None:
        """Close a seat. Idempotent."""
        ...


class Seat(Closing):
    """One container's part of a gateway: a socket, a token and a meter.

    Attributes:
        name: the name of the seat in the log; for example a generation, a slot or a trajectory.
        token: the token that the container must send; it is valid at this seat's socket only.
        socket_path: path of the socket on the host.
        meter: counts against the seat's budget.
    """

    def __init__(self, gateway: Seats, name: str, meter: Meter, directory: str) -> None:
        """Create the token; :meth:`Gateway.seat` creates the socket."""
        self.name = name
        self.token = f"hyperruntime-{secrets.token_urlsafe(24)}"
        self.socket_path = os.path.join(directory, SOCKET_NAME)
        self._gateway = gateway
        self.meter = meter
        self._refused = self._outage = ""
        self._refusal = EndEvent()

    @property
    def spent(self) -> Spent:
        """The usage so far of this seat and of all seats that share its meter."""
        return self.meter.spent

    def check(self) -> None:
        """Raise if a budget is used up or the upstream does not answer.

        Raises:
            BudgetExceededError: a request of this seat was refused because its own or the run's
                budget is used up.
            GatewayError: the upstream failed the last request of this seat, after all retries.
        """
        if self._refused:
            raise BudgetExceededError(f"{self._refused}; raise the budget, or stop here")
        if self._outage:
            raise GatewayError(f"{self._outage}; fix the server, then resume")

    def when_refused(self, act: Callable[[], None]) -> None:
        """Call `act` once when a budget refuses a request of this seat; at once if a request was
        refused before.

        The gateway's thread calls it, so it must be quick.
        """
        self._refusal.listen(act)

    def refuse(self, why: str) -> None:
        """Record why a request was refused, and call the listeners; for the gateway's thread
        only.
        """
        self._refused = self._refused or why
        self._refusal.set()

    def sent(self, outage: str) -> None:
        """Record the outage of the last request, "" if there was none; for the gateway's thread
        only.
        """
        self._outage = outage

    def close(self) -> None:
        """Close the socket and all connections to it. Idempotent."""
        self._gateway.drop(self)


def listen_in(directory: str) -> socket.socket:
    """Return a seat's socket in a directory.

    Raises:
        GatewayError: it cannot be created.
    """
    try:
        return listeners.listen_in(directory, SOCKET_NAME)
    except OSError as error:
        raise GatewayError(
            f"cannot create a socket in {directory}: {error}; use a local directory"
        ) from error
