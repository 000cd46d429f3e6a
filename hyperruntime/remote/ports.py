"""Ports of a slot of a node: the head's machine listens, and each client goes over the connection
to the node.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from hyperruntime.errors import HyperRuntimeError, StaleLeaseError
from hyperruntime.exec.options import Stream
from hyperruntime.ports.forward import listen
from hyperruntime.remote.calls import Calls
from hyperruntime.remote.commands import CHUNK_BYTES, new_name, send_input
from hyperruntime.wire.peer import Answer


class RemotePorts:
    """The forwarded ports of one slot."""

    def __init__(self, calls: Calls) -> None:
        """Listen on nothing yet.

        Args:
            calls: the node of the slot.
        """
        self._calls = calls
        self._servers: dict[tuple[int, str], asyncio.Server] = {}
        self._clients: set[asyncio.Task[Any]] = set()
        self._opening = asyncio.Lock()
        self._closed = False

    async def open(self, port: int, host: str) -> tuple[str, int]:
        """Return the address on this machine that leads to a port of the slot; see
        :meth:`Lease.forward`.
        """
        async with self._opening:
            server = self._servers.get((port, host))
            if server is None:
                await self._calls.call("port.forward", port=port)
                server = await asyncio.start_server(
                    partial(self._serve, port), sock=listen(host), limit=CHUNK_BYTES
                )
                self._servers[port, host] = server
                self._check_open()
        address: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return address

    def _check_open(self) -> None:
        if self._closed:
            self.close()
            raise StaleLeaseError("the slot was released; acquire another one")

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._closed = True
        for server in self._servers.values():
            server.close()
        for client in self._clients:
            client.cancel()

    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        name = new_name()
        sending: asyncio.Task[None] | None = None

        def begin(_: Answer) -> None:
            nonlocal sending
            forget = partial(self._calls.soon, "process.end", process=name)
            sending = self._calls.keep(send_input(self._calls, name, reader, forget))

        async def show(stream: Stream, chunk: bytes) -> None:
            if chunk:
                writer.write(chunk)
                await writer.drain()
            else:
                writer.write_eof()

        try:
            with suppress(HyperRuntimeError, OSError):  # the client sees that its connection ends
                await self._calls.run(
                    "port.connect", [], {}, sink=show, on_started=begin, process=name, port=port
                )
        # the lease has ended; a client that does not read must see it too
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._clients.discard(task)
            if sending is not None:
                sending.cancel()
            writer.close()
