"""Read the bodies of one container's requests, within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import attrs
from aiohttp import web

from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.gateway.request.json_size import ValueCounter
from hyperruntime.gateway.request.pace import Pace
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.units import KIB

SLOW_KIND = "slow_client"
_SMALL_BYTES = 64 * KIB
_BYTES_PER_VALUE = 100  # bytes of text that take as long to parse as one value
_DRAIN_S = 2.0


@attrs.frozen(kw_only=True)
class Body:
    """The body of a request.

    Attributes:
        data: its bytes.
        values: JSON values in it, as :class:`ValueCounter` counts them.
    """

    data: bytes
    values: int

    @property
    def cost(self) -> int:
        """The time to parse it, in JSON values."""
        return self.values + len(self.data) // _BYTES_PER_VALUE


class BodyReader:
    """Reads the bodies of one seat's requests; bounds their memory and their time in the event loop together."""

    def __init__(self, limits: ClientLimits) -> None:
        """Start with no bodies held."""
        self._limits = limits
        self._most_held = max(limits.held_bytes, limits.body_bytes)  # at least one body of full size
        self._held = 0
        self._pace = Pace(limits.body_bytes_per_s, limits.body_bytes_per_s)
        self._large = asyncio.Semaphore(limits.large_bodies)

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[Body]:
        """Yield the body; its bytes count against ``held_bytes`` until the block ends.

        Raises:
            RequestRefusedError: the body is too large, has too many values, does not arrive in time or ends early; or
                the requests of the seat hold too many bytes at once.
        """
        if (request.content_length or 0) > self._limits.body_bytes:
            raise self._too_large()
        async with self._room() as take:
            if 0 <= (request.content_length or -1) <= _SMALL_BYTES:
                body = await self._read(request, take)
            else:
                async with self._large:
                    body = await self._read(request, take)
            yield body

    async def drain(self, request: web.BaseRequest) -> None:
        """Read the rest of a refused body for at most 2 s, so that the client gets to read the refusal."""
        with suppress(TimeoutError, web.RequestPayloadError, aiohttp.ClientPayloadError):
            async with asyncio.timeout(_DRAIN_S):
                async for piece in request.content.iter_any():
                    await self._pace.take(len(piece))

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one request; they are released when the block ends.

        The function raises :class:`RequestRefusedError` if the requests of the seat would hold too many.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._held + size > self._most_held:
                why = f"the requests of this container hold more than {self._most_held} bytes; retry later"
                raise RequestRefusedError(429, "too_much_at_once", why)
            taken += size
            self._held += size

        try:
            yield take
        finally:
            self._held -= taken

    async def _read(self, request: web.BaseRequest, take: Callable[[int], None]) -> Body:
        pieces: list[bytes] = []
        counter, size = ValueCounter(), 0
        try:
            async with asyncio.timeout(self._limits.client_s) as deadline:
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
        except TimeoutError:
            why = f"the body did not arrive within {self._limits.client_s:g} s"
            raise RequestRefusedError(408, SLOW_KIND, why) from None
        except (web.RequestPayloadError, aiohttp.ClientPayloadError) as error:
            raise RequestRefusedError(400, "broken_body", f"the body ended early: {str(error)[:100]}") from None
        return Body(data=b"".join(pieces), values=counter.values)

    def _too_large(self) -> RequestRefusedError:
        why = f"the body has more than {self._limits.body_bytes} bytes; send less, or raise limits.body_bytes"
        return RequestRefusedError(413, "body_too_large", why)

    def _too_many_values(self) -> RequestRefusedError:
        most = self._limits.body_values
        why = (
            f"the body has more than {most} JSON values (numbers, texts, lists, objects); "
            "split the request, or raise limits.body_values"
        )
        return RequestRefusedError(413, "body_too_large", why)
