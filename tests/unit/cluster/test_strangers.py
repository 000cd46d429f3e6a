"""A head and what it must not trust: clients that are no nodes, and nodes that send what they should not."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys

import pytest

import hyperruntime
from hyperruntime.cluster.channel import LARGEST_FRAME_BYTES
from hyperruntime.cluster.head import Head, Invitation
from hyperruntime.cluster.keys import client_context
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.cluster.peer import Answer, Call

SESSION = "0123"


def frame(first: int, payload: bytes, length: int | None = None, *, masked: bool = True) -> bytes:
    """Return a frame of RFC 6455, section 5.2.

    Args:
        first: the first byte: 0x80 for the last part of a message, and the opcode.
        payload: what the frame carries.
        length: in place of the payload's.
        masked: whether as from a client, with a mask of zeros.
    """
    mask, bit = (b"\0\0\0\0", 0x80) if masked else (b"", 0)
    size = len(payload) if length is None else length
    told = bytes([bit | size]) if size < 126 else bytes([bit | 127]) + struct.pack(">Q", size)
    return bytes([first]) + told + mask + payload


def hello(**changed: object) -> bytes:
    """Return the frame by which a node begins."""
    said = {"version": hyperruntime.__version__, "session": SESSION, "facts": {}, "received": 0, **changed}
    return frame(0x81, json.dumps(said).encode())


def request(invitation: Invitation, **changed: str | None) -> bytes:
    """Return the request of a node (RFC 6455, section 4.1), with changed header fields; None: none."""
    fields: dict[str, str | None] = {
        "Host": "x",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Version": "13",
        "X-Node": invitation.name,
        "Authorization": f"Bearer {invitation.token}",
    }
    fields |= {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join(["GET /node HTTP/1.1", *lines, "", ""]).encode()


async def answer(invitation: Invitation, *sent: bytes, tls: bool = True) -> bytes:
    """Return all that the head answers until it closes the connection.

    Args:
        invitation: names the head.
        sent: what the client sends; it waits for an answer after each but the last.
        tls: whether it uses TLS.
    """
    host, _, port = invitation.addresses[0].rpartition(":")
    context = client_context(invitation.certificate) if tls else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    got = b""
    try:
        for data in sent:
            writer.write(data)
            got += await reader.read(1 << 16)
        while data := await reader.read(1 << 16):
            got += data
    except ConnectionError:
        pass
    finally:
        writer.close()
    return got


REFUSED: list[tuple[dict[str, str | None], bytes]] = [
    ({"Authorization": "Bearer guessed"}, b"401"),
    ({"Authorization": None}, b"401"),
    ({"X_Node": "n2"}, b"401"),
    ({"Upgrade": None}, b"400"),
    ({"Sec_WebSocket_Key": None}, b"400"),
]
NO_HELLO = (frame(0x81, b"[1"), frame(0x82, b"{}"), hello(received="1"), hello(received=None), frame(0x8B, b"x"))
AFTER_HELLO = {
    "a text": frame(0x81, b"x"),
    "a part": frame(0x02, b"x"),
    "too short": frame(0x82, b"x"),
    "too long": frame(0x82, b"", LARGEST_FRAME_BYTES + 1),
    "no mask": frame(0x82, b"x" * 17, masked=False),
    "no opcode": frame(0x8B, b"x"),
    "a long ping": frame(0x89, b"", 126),
    "the end": frame(0x88, b"\x03\xe8"),
}


def test_what_no_node_sends_ends_its_connection_and_nothing_else() -> None:
    async def echo(call: Call) -> Answer:
        return Answer(call.args)

    async def test() -> None:
        head = Head(heartbeat_s=0.5)
        await head.start("127.0.0.1")
        invitation = head.invite("n1")
        node = head.nodes["n1"]
        for changed, status in REFUSED:
            assert (await answer(invitation, request(invitation, **changed))).split()[1] == status, changed
        other = request(invitation).replace(b"/node", b"/other")
        assert (await answer(invitation, other)).split()[1] == b"404"
        for words in (b"GET\r\n\r\n", b"\0" * 70_000, b"POST /node HTTP/1.1\r\nContent-Length: 9\r\n\r\n"):
            assert b" 101 " not in await answer(invitation, words)
        assert await answer(invitation, request(invitation), tls=False) == b""
        for said in NO_HELLO:
            assert b" 101 " in await answer(invitation, request(invitation), said)
        assert not node.joined.is_set()
        for sent in AFTER_HELLO.values():
            assert b'{"received": 0}' in await answer(invitation, request(invitation), hello(), sent)
        assert node.joined.is_set()
        assert node.lost is None
        server = NodeServer(invitation, {"echo": echo})
        server._session = SESSION
        served = asyncio.ensure_future(server.serve())
        assert (await node.peer.call("echo", {"a": 1})).value == {"a": 1}
        await head.stop()
        served.cancel()
        await asyncio.wait([served])

    asyncio.run(asyncio.wait_for(test(), 120))


def test_a_stranger_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.cluster.head.HELLO_S", 3.0)

    async def test() -> None:
        head = Head()
        await head.start("127.0.0.1")
        invitation = head.invite("n1")
        silent = answer(invitation, tls=False), answer(invitation), answer(invitation, request(invitation))
        *nothing, refused = await asyncio.gather(*silent)
        assert nothing == [b"", b""]
        assert b" 101 " in refused
        await head.stop()

    asyncio.run(asyncio.wait_for(test(), 120))


_WITHOUT_DESCRIPTORS = """
import asyncio, os, resource, socket
from hyperruntime.cluster.head import Head
from hyperruntime.cluster.node_server import NodeServer

async def main():
    failed, loop = asyncio.Event(), asyncio.get_running_loop()
    told = []
    loop.set_exception_handler(lambda _, context: (told.append(context["message"]), failed.set()))
    head = Head()
    await head.start("127.0.0.1")
    invitation = head.invite("n1")
    server = NodeServer(invitation, {})
    host, _, port = invitation.addresses[0].rpartition(":")
    client = socket.socket()
    client.setblocking(False)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), usual[1]))
    await loop.sock_connect(client, (host, int(port)))
    await asyncio.wait_for(failed.wait(), 60)
    await asyncio.sleep(0.2)
    print(sorted(set(told)), len(told) < 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    serving = asyncio.ensure_future(server.serve())
    await asyncio.wait_for(head.nodes["n1"].joined.wait(), 60)
    client.close()
    await head.stop()
    serving.cancel()

asyncio.run(main())
"""


def test_a_head_without_file_descriptors_waits_until_there_are_some() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['socket.accept() out of system resource'] True\n"
