"""Read the bodies of one container's requests, within its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress

import aiohttp
import attrs
from aiohttp import web

from hyperruntime.gateway.config.values import ClientLimits
from hyperruntime.gateway.request.pace import Pace
from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.json_values import ValueCounter
from hyperruntime.units import KIB

SLOW_KIND = "slow_client"
_SMALL_BYTES = 64 * KIB
_BYTES_PER_VALUE = 100  # bytes of text that take as long to parse as one value
_DRAIN_S = 2.0


@attrs.define
class Body:
    """The body of a request.

    Attributes:
        data: its bytes; empty until all of them arrived.
        size: number of bytes that arrived.
        values: JSON values in them, as :class:`ValueCounter` counts them.
    """

    data: bytes = b""
    size: int = 0
    values: int = 1

    @property
    def cost(self) -> int:
        """The time to parse it, in JSON values."""
        return self.values + self.size // _BYTES_PER_VALUE


class BodyReader:
    """Reads the bodies of one seat's requests; bounds their memory and their time in the event loop
    together.
    """

    def __init__(self, limits: ClientLimits) -> None:
        """Start with no bodies held."""
        self._limits = limits
        # at least one body of full size
        self._most_held = max(limits.held_bytes, limits.body_bytes)
        self._held = 0
        self._pace = Pace(limits.body_bytes_per_s, limits.body_bytes_per_s)
        self._large = asyncio.Semaphore(limits.large_bodies)

    @asynccontextmanager
    async def read(self, request: web.BaseRequest) -> AsyncIterator[Body]:
        """Yield the body; its bytes count against ``held_bytes`` until the block ends.

        Raises:
            RequestRefusedError: the body is too large, has too many values, does not arrive in time
                or ends early; or the requests of the seat hold too many bytes at once.
        """
        if (request.content_length or 0) > self._limits.body_bytes:
            raise self._too_large()
        body = Body()
        try:
            is_small = 0 <= (request.content_length or -1) <= _SMALL_BYTES
            async with nullcontext() if is_small else self._large:
                await self._fill(body, request)
            yield body
        finally:
            self._held -= body.size

    async def drain(self, request: web.BaseRequest) -> None:
        """Read the rest of a refused body for at most 2 s, so that the client gets to read the
        refusal.
        """
        with suppress(TimeoutError, web.RequestPayloadError, aiohttp.ClientPayloadError):
            async with asyncio.timeout(_DRAIN_S):
                async for piece in request.content.iter_any():
                    await self._pace.take(len(piece))

    async def _fill(self, body: Body, request: web.BaseRequest) -> None:
        pieces: list[bytes] = []
        counter = ValueCounter()
        try:
            async with asyncio.timeout(self._limits.client_s) as deadline:
                async for piece in request.content.iter_any():
                    self._take(body, len(piece))
                    body.values = counter.feed(piece)
                    if body.values > self._limits.body_values:
                        why = f"the body has more than {self._limits.body_values} JSON values"
                        why += (
                            " (numbers, texts, lists, objects); split the request, or raise "
                            "limits.body_values"
                        )
                        raise RequestRefusedError(413, "body_too_large", why)
                    pieces.append(piece)
                    waited_s = await self._pace.take(len(piece))
                    deadline.reschedule((deadline.when() or 0.0) + waited_s)
        except TimeoutError:
            why = f"the body did not arrive within {self._limits.client_s:g} s"
            raise RequestRefusedError(408, SLOW_KIND, why) from None
        except (web.RequestPayloadError, aiohttp.ClientPayloadError) as error:
            raise RequestRefusedError(
                400, "broken_body", f"the body ended early: {str(error)[:100]}"
            ) from None
        body.data = b"".join(pieces)

    def _take(self, body: Body, size: int) -> None:
        """Count bytes that arrived for a body, or refuse them."""
        if body.size + size > self._limits.body_bytes:
            raise self._too_large()
        if self._held + size > self._most_held:
            why = (
                f"the requests of this container hold more than {self._most_held} bytes; retry "
                "later"
            )
            raise RequestRefusedError(429, "too_much_at_once", why)
        body.size += size
        self._held += size

    def _too_large(self) -> RequestRefusedError:
        why = (
            f"the body has more than {self._limits.body_bytes} bytes; send less, or raise "
            "limits.body_bytes"
        )
        return RequestRefusedError(413, "body_too_large", why)
