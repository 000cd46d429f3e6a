"""The gateway: an event loop in a thread, and a socket for each container."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import GatewayError, SpecError
from hyperruntime.gateway.config.values import Budget, GatewayConfig
from hyperruntime.gateway.log.budget import Meter, Spent
from hyperruntime.gateway.seat import Seat, listen_in

_CALL_S = 30.0
_SEAT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")


class Gateway(Closing):
    """Serves models to containers until it is closed. Thread-safe.

    Example:
        >>> upstream = hr.Upstream(name="lab", url="http://127.0.0.1:8000/v1")
        >>> rule = hr.ModelRule(name="*", upstream="lab")
        >>> with hr.Gateway(hr.GatewayConfig(upstreams=[upstream], models=[rule])) as gateway:
        ...     gateway.spent.requests
        0
    """

    def __init__(self, config: GatewayConfig, spent: Spent | None = None) -> None:
        """Start the gateway's thread.

        Args:
            config: the gateway's configuration.
            spent: earlier usage that counts against the run's budget, for example of a resumed run;
                None means zero.

        Raises:
            GatewayError: a key or a file of recorded exchanges is missing.
            StorageError: a log file cannot be written.
        """
        from hyperruntime.gateway.shared import Shared

        self._meter = Meter("the run", config.budget, spent)
        # with what stops each
        self._seats: dict[Seat, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._closed = False
        self._users = 0  # threads that open or close a seat
        self._idle = threading.Condition()
        self._shared = Shared(config, self._meter)
        self._loop = Bridge("hyperruntime-gateway", lambda why: GatewayError(f"the gateway {why}"))

    @property
    def spent(self) -> Spent:
        """The usage of all seats together so far, with the earlier usage."""
        return self._meter.spent

    @property
    def used_up(self) -> str:
        """The limit of the run's budget that is reached, as a sentence; "" while there is
        budget.
        """
        return self._meter.used_up

    def seat(self, name: str, directory: str, budget: Budget | Meter | None = None) -> Seat:
        """Return a new seat, and listen on its socket.

        Args:
            name: the name of the seat in the log: 1 to 200 letters, digits and ``._:/-``.
            directory: directory of the host in which the socket is created.
            budget: the budget of this seat, in addition to the run's; or a meter that several seats
                share.

        Raises:
            GatewayError: the socket cannot be created, or the gateway is closed.
            SpecError: the name is malformed.
        """
        from hyperruntime.gateway.service import serve_seat

        if not _SEAT_NAME.fullmatch(name):
            raise SpecError("seat", name, "1 to 200 letters, digits and . _ : / -")
        meter = budget if isinstance(budget, Meter) else Meter(name, budget or Budget())
        with self._use() as is_open:
            if not is_open:
                raise GatewayError("the gateway is closed; open a new one")
            seat = Seat(self, name, meter, directory)
            listener = listen_in(directory)
            try:
                self._seats[seat] = self._loop.run(
                    serve_seat(seat, self._shared, listener), _CALL_S
                )
            except BaseException:
                listener.close()
                raise
        return seat

    def drop(self, seat: Seat) -> None:
        """Close a seat. Idempotent; the end of the gateway closes all seats."""
        with self._use() as is_open:
            if is_open:
                self._stop(seat)

    def close(self) -> None:
        """Close all seats, cancel running requests and stop the thread. Idempotent."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: not self._users)
        for seat in list(self._seats):
            self._stop(seat)
        self._loop.run(self._end(), _CALL_S)
        self._shared.close()
        self._loop.close()

    def _stop(self, seat: Seat) -> None:
        stop = self._seats.pop(seat, None)
        if stop is not None:
            self._loop.run(stop(), _CALL_S)
            with suppress(OSError):
                os.unlink(seat.socket_path)

    async def _end(self) -> None:
        await cancel_other_tasks()
        await self._shared.sender.close()

    @contextmanager
    def _use(self) -> Iterator[bool]:
        """Keep the gateway open during a block: a seat is closed either there or by the gateway's
        end.

        Yields:
            Whether it is open.
        """
        with self._idle:
            is_open = not self._closed
            self._users += 1
        try:
            yield is_open
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()
