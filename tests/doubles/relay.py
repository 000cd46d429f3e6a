"""Networks between a head and its nodes that fail, by relays of TCP connections."""

from __future__ import annotations

import asyncio
import itertools

import attrs
import pytest

from hyperruntime.cluster.head import Head, Invitation


class Relay:
    """A TCP relay whose connections can be cut, as by a network that fails."""

    def __init__(self) -> None:
        self.open = True
        self.flows = asyncio.Event()
        self.flows.set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.server: asyncio.Server | None = None

    async def start(self, port: int) -> str:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(1 << 16):
                    await self.flows.wait()
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass
            finally:
                writer.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self.open:
                writer.close()
                return
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", port)
            self.writers |= {writer, onward}
            await asyncio.gather(pump(reader, onward), pump(onward_reader, writer))

        self.server = await asyncio.start_server(accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    def fail(self, how: str) -> None:
        """Cut and refuse connections; or, if ``how`` is ``silent``, pass nothing on, and let no one
        know.
        """
        if how == "silent":
            self.flows.clear()
        else:
            self.open = False
            self.cut()

    def recover(self) -> None:
        self.open = True
        self.flows.set()


def relay_nodes(monkeypatch: pytest.MonkeyPatch, count: int = 8) -> list[Relay]:
    """Put a relay of its own between the next head and each of its nodes; the first one is that of
    the first node.
    """
    relays = [Relay() for _ in range(count)]
    addresses: list[str] = []
    numbers = itertools.count()
    start, stop, invite = Head.start, Head.stop, Head.invite

    async def start_relays(head: Head, host: str, port: int = 0) -> None:
        await start(head, host, port)
        listens = int(head._addresses[0].rpartition(":")[2])
        addresses.extend([await relay.start(listens) for relay in relays])

    async def stop_relays(head: Head) -> None:
        for relay in relays:
            relay.close()
        await stop(head)

    def invite_by_relay(head: Head, name: str) -> Invitation:
        return attrs.evolve(invite(head, name), addresses=(addresses[next(numbers)],))

    monkeypatch.setattr(Head, "start", start_relays)
    monkeypatch.setattr(Head, "stop", stop_relays)
    monkeypatch.setattr(Head, "invite", invite_by_relay)
    return relays
