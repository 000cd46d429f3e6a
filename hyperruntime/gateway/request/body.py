"""Read the bodies of one container's requests, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import attrs
from aiohttp import web

from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.gateway.request.body_budget import BodyBudget
from hyperruntime.gateway.request.json_size import ValueCounter
from hyperruntime.gateway.request.pace import Pace
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.units import KIB

SLOW_KIND = "slow_client"
_SMALL_BYTES = 64 * KIB
_BYTES_PER_VALUE = 100  # of text, which take as long to parse as a value
_DRAIN_S = 2.0


@attrs.frozen(kw_only=True)
class Body:
    """The body of a request.

    Attributes:
        data: its bytes.
        values: numbers, texts, lists and objects in it.
    """

    data: bytes
    values: int

    @property
    def cost(self) -> int:
        """How long it takes to parse, in values."""
        return self.values + len(self.data) // _BYTES_PER_VALUE


class BodyReader:
    """Reads bodies; what they take of memory and of the event loop is bounded for all requests of a seat together."""

    def __init__(self, limits: ClientLimits) -> None:
        """Read none yet."""
        self._limits = limits
        self._room = BodyBudget(limits)
        self._pace = Pace(limits.body_bytes_per_s, limits.body_bytes_per_s)
        self._large = asyncio.Semaphore(limits.large_bodies)

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[Body]:
        """Give the body, and hold its room while it is used.

        Raises:
            RequestRefusedError: it is too large, has too many values, does not come in time or ends early.
        """
        if (request.content_length or 0) > self._limits.body_bytes:
            raise self._too_large()
        async with self._room.share() as take:
            if 0 <= (request.content_length or -1) <= _SMALL_BYTES:
                body = await self._read(request, take)
            else:
                async with self._large:
                    body = await self._read(request, take)
            yield body

    async def drain(self, request: web.BaseRequest) -> None:
        """Read the rest of a refused body at the pace of all, so that its client comes to read the refusal."""
        with suppress(TimeoutError, web.RequestPayloadError, aiohttp.ClientPayloadError):
            async with asyncio.timeout(_DRAIN_S):
                async for piece in request.content.iter_any():
                    await self._pace.take(len(piece))

    async def _read(self, request: web.BaseRequest, take: Callable[[int], None]) -> Body:
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.client_s) as deadline:
                values = await self._pieces(request, take, pieces, deadline)
        except TimeoutError:
            why = f"the body did not come within {self._limits.client_s:g} s"
            raise RequestRefusedError(408, SLOW_KIND, why) from None
        except (web.RequestPayloadError, aiohttp.ClientPayloadError) as error:
            raise RequestRefusedError(400, "broken_body", f"the body ended early: {str(error)[:100]}") from None
        return Body(data=b"".join(pieces), values=values)

    async def _pieces(
        self, request: web.BaseRequest, take: Callable[[int], None], pieces: list[bytes], deadline: asyncio.Timeout
    ) -> int:
        counter, size = ValueCounter(), 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > self._limits.body_bytes:
                raise self._too_large()
            take(len(piece))
            if counter.feed(piece) > self._limits.body_values:
                raise self._too_many_values()
            pieces.append(piece)
            waited_s = await self._pace.take(len(piece))
            deadline.reschedule((deadline.when() or 0.0) + waited_s)
        return counter.values

    def _too_large(self) -> RequestRefusedError:
        why = f"a body may have {self._limits.body_bytes} bytes; send less, or have limits.body_bytes raised"
        return RequestRefusedError(413, "body_too_large", why)

    def _too_many_values(self) -> RequestRefusedError:
        most = self._limits.body_values
        why = (
            f"a body may have {most} JSON values (numbers, texts, lists, objects); "
            "split the request, or have limits.body_values raised"
        )
        return RequestRefusedError(413, "body_too_large", why)
