"""A head and what it must not trust: clients that are no nodes, and nodes that send what they
should not.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hyperruntime
from hyperruntime.cluster.head import Head, Invitation
from hyperruntime.cluster.keys import client_context
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.wire.channel import LARGEST_FRAME_BYTES
from hyperruntime.wire.messages import MOST_VALUES, pack
from hyperruntime.wire.peer import Answer, Call

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
    said = {
        "version": hyperruntime.__version__,
        "session": SESSION,
        "facts": {},
        "received": 0,
        **changed,
    }
    return frame(0x81, json.dumps(said).encode())


def request(invitation: Invitation, **changed: str | None) -> bytes:
    """Return the request of a node (RFC 6455, section 4.1), with changed header fields; None:
    none.
    """
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
    return "\r\n".join(["GET /node HTTP/1.1", *lines, "", ""]).encode(errors="surrogateescape")


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
NO_HELLO = (
    frame(0x81, b"[1"),
    frame(0x82, b"{}"),
    hello(received="1"),
    hello(received=None),
    frame(0x8B, b"x"),
)
AFTER_HELLO = {
    "a text": frame(0x81, b"x"),
    "a part": frame(0x02, b"x"),
    "too short": frame(0x82, b"x"),
    "too long": frame(0x82, b"", LARGEST_FRAME_BYTES + 1),
    "no mask": frame(0x82, b"c" + bytes(16), masked=False),
    "no opcode": frame(0x8B, b"x"),
    "a long ping": frame(0x89, b"", 126),
    "the end": frame(0x88, b"\x03\xe8"),
}


async def test_what_no_node_sends_ends_its_connection_and_nothing_else() -> None:
    async def echo(call: Call) -> Answer:
        return Answer(call.args)

    head = Head(heartbeat_s=0.5)
    await head.start("127.0.0.1")
    invitation = head.invite("n1")
    node = head.nodes["n1"]
    for changed, status in REFUSED:
        assert (await answer(invitation, request(invitation, **changed))).split()[1] == status, (
            changed
        )
    other = request(invitation).replace(b"/node", b"/other")
    assert (await answer(invitation, other)).split()[1] == b"404"
    for words in (
        b"GET\r\n\r\n",
        b"\0" * 70_000,
        b"POST /node HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ):
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


async def test_a_stranger_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.cluster.head.HELLO_S", 3.0)

    head = Head()
    await head.start("127.0.0.1")
    invitation = head.invite("n1")
    silent = (
        answer(invitation, tls=False),
        answer(invitation),
        answer(invitation, request(invitation)),
    )
    *nothing, refused = await asyncio.gather(*silent)
    assert nothing == [b"", b""]
    assert b" 101 " in refused
    await head.stop()


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
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['socket.accept() out of system resource'] True\n"


_HEAD = """
import asyncio, json, sys, time
import attrs
from hyperruntime.cluster.head import Head
from hyperruntime.wire.peer import Answer

async def echo(call):
    return Answer(call.args, call.body)

async def wait(call):
    await asyncio.Event().wait()

async def watch(worst):
    while True:
        before = time.thread_time()
        await asyncio.sleep(0.001)
        worst[-1] = max(worst[-1], time.thread_time() - before)

async def main(count):
    loop, reader, worst = asyncio.get_running_loop(), asyncio.StreamReader(), [0.0]
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    head = Head({"echo": echo, "wait": wait}, patience_s=1000)
    await head.start("127.0.0.1")
    print(json.dumps([attrs.asdict(head.invite(f"n{number}")) for number in range(count)]), flush=True)
    watching = asyncio.ensure_future(watch(worst))
    while await reader.readline():
        worst.append(0.0)
    watching.cancel()
    lost = {name: str(node.lost) for name, node in head.nodes.items() if node.lost is not None}
    print(json.dumps({"worst": worst, "lost": lost}), flush=True)
    await head.stop()

asyncio.run(main(int(sys.argv[1])))
"""
CLOSE = frame(0x88, b"\x03\xe8")  # so that the head need not wait for it
BLOCKED_S = 0.1  # of the processor time of the head's event loop, between two of its turns
FRAMES = 30  # on one connection; the last one ends it


def piece(number: int, content: bytes, *, kind: bytes = b"f", confirmed: int = 0) -> bytes:
    """Return a message of the channel, in its frame of a WebSocket."""
    return frame(0x82, struct.pack(">cQQ", kind, number, confirmed) + content)


def said(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(header)) + header + body


def odd_value(rng: random.Random) -> Any:
    huge, deep = 10 ** rng.randrange(1, 4000), json.loads('{"a":' * 400 + "1" + "}" * 400)
    numbers = [-1, 0, 1 << 64, huge, float("nan"), float("inf"), 1e308, -0.5]
    return rng.choice(
        [*numbers, None, True, "", "\x1b[2J\r\n", "\udcff", "x" * 5000, [], {}, [[]], deep]
    )


def hostile_hello(rng: random.Random) -> bytes:
    """Return a hello that must be refused."""
    kinds: list[Callable[[], bytes]] = [
        lambda: hello(
            received=rng.choice([-1, 1, 1 << 63, 1 << 64, "0", None, 0.5, True, [0], float("nan")])
        ),
        lambda: hello(
            facts={rng.choice(["age_s", "pid", "time"]): rng.choice([float("nan"), -1e15, "1", []])}
        ),
        lambda: hello(
            facts={"host": rng.choice(["\x1b]0;x\x07", "a\nb", "\ud800", "h" * 10_000, 7])}
        ),
        lambda: hello(session=rng.choice(["other", 7, None, "s" * 101, "\x00"])),
        lambda: hello(**{rng.choice(["more", "\x1b[2J"]): odd_value(rng)}),
        lambda: hello(version=rng.choice([None, 7, "\x1b", "1" * 300_000])),
        lambda: frame(0x81, b"[" * rng.randrange(1, 60_000)),
        lambda: frame(0x81, b'{"a":' * rng.randrange(1, 12_000)),
        lambda: frame(0x82, rng.randbytes(rng.randrange(200))),
    ]
    return rng.choice(kinds)()


def ignored_message(rng: random.Random) -> bytes:
    """Return a message that is answered with an error, or ignored."""
    number = rng.randrange(1, 1 << 62)
    call = {
        "is": "call",
        "id": number,
        "method": rng.choice(["x" * 3000, "\udcff", "echo"]),
        "args": {},
    }
    value = odd_value(rng)
    other = {
        "is": rng.choice(["answer", "event", "error", "cancel"]),
        "id": number,
        "value": value,
        "error": value,
    }
    return pack(
        rng.choice([call, {**call, "args": {"a": value}}, other]),
        rng.randbytes(rng.randrange(3000)),
    )


def fatal_pieces(rng: random.Random, number: int) -> bytes:
    """Return what ends the connection, sent as the frame with this number or instead of it."""
    good = pack({"is": "call", "id": 1 << 62, "method": "wait", "args": {}})
    odd: Any = rng.choice([-1, 1 << 63, 0.5, "1", None, [1], {}, True])
    leaving = {
        "is": "call",
        "id": 5,
        "method": "leaving",
        "args": rng.choice([{}, {"why": "\x1b[2J"}, {"why": []}]),
    }
    calls: list[Any] = [
        {"is": "call", "id": odd, "method": "echo", "args": {}},
        {"is": rng.choice(["", [], "other", None, 7]), "id": 1},
        {"is": "call", "id": 1, "method": rng.choice([[], {}, None, 7]), "args": {}},
        {"is": "call", "id": 1, "method": "echo", "args": rng.choice([[], None, 7, "x"])},
        leaving,
    ]
    texts = [
        b'{"id":1e999,"is":"call"}',
        b'{"id":NaN,"is":"call"}',
        b"[]",
        b'{"a":' * 20_000,
        b"\xff" * 9,
    ]
    kinds: list[Callable[[], bytes]] = [
        lambda: piece(number, good, confirmed=rng.choice([(1 << 64) - 1, 1 << 40])),
        lambda: piece(number + rng.randrange(1, 9), good),
        lambda: piece(0, good) if number > 1 else piece(9, good),
        lambda: piece(number, good, kind=rng.choice([b"x", b"c", b"\0"])),
        lambda: piece(number, b"part", kind=b"p"),
        lambda: piece(number, b""),
        lambda: piece(number, b"\xff\xff\xff\xff{}"),
        lambda: piece(number, said(rng.choice(texts))),
        lambda: piece(number, said(b'{"a":[' + b"[]," * (MOST_VALUES // 2) + b"1]}")),
        lambda: piece(number, pack(rng.choice(calls))),
        lambda: piece(number, pack(rng.choice(calls))),
        lambda: piece(number, good) + piece(number + 1, good),
        lambda: frame(0x89, b"") * 20_000,
    ]
    return rng.choice(kinds)()


def hostile_frames(rng: random.Random) -> bytes:
    """Return the frames of a connection: all but the last one are answered or ignored."""
    sent, number = [], 1
    for _ in range(FRAMES - 1):
        again = number > 1 and rng.random() < 0.2
        sent.append(piece(rng.randrange(1, number) if again else number, ignored_message(rng)))
        number += not again
    return b"".join(sent) + fatal_pieces(rng, number)


class HonestNode:
    """A node that asks the head all the time, beside another one that attacks it."""

    def __init__(self, invitation: Invitation) -> None:
        self.answered = 0
        self._server = NodeServer(invitation, {})
        self._tasks = [
            asyncio.ensure_future(self._server.serve()),
            asyncio.ensure_future(self._ask()),
        ]

    async def _ask(self) -> None:
        while True:
            assert (await self._server.peer.call("echo", {"n": self.answered})).value == {
                "n": self.answered
            }
            self.answered += 1

    async def wait_for(self, answers: int) -> None:
        """Wait for so many more answers."""
        wanted = self.answered + answers
        while self.answered < wanted:
            assert not any(task.done() for task in self._tasks)
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


async def attack(
    messages: int, honest: HonestNode, greeter: Invitation, others: list[Invitation]
) -> None:
    """Send hostile messages; after each connection, the honest node must get answers."""
    rng = random.Random(7)
    for token in ("", "\u00e9", "x" * 7000, greeter.token + "\u00e9"):
        assert (await answer(greeter, request(greeter, Authorization=f"Bearer {token}"))).split()[
            1
        ] == b"401"
    for name in (b"X-Node: \xff\xfe", b"X-Node: ", b"X-Node: " + b"n" * 7000):
        odd = request(greeter).replace(b"X-Node: " + greeter.name.encode(), name)
        assert (await answer(greeter, odd)).split()[1] == b"401"
    await answer(greeter, request(greeter), hello(), CLOSE)
    for _ in range(messages // 20):
        assert b" 101 " in await answer(greeter, request(greeter), hostile_hello(rng) + CLOSE)
        await honest.wait_for(2)
    for node in others:
        assert b'{"received": 0}' in await answer(
            node, request(node), hello(), hostile_frames(rng) + CLOSE
        )
        await honest.wait_for(2)


@pytest.mark.parametrize("messages", [600, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_a_hostile_node_with_a_valid_token_does_not_keep_the_head_from_others(
    messages: int,
) -> None:
    """The head measures the processor time of its event loop, so that a busy machine does not
    matter.
    """

    nodes = 2 + messages * 19 // 20 // FRAMES
    command, pipe = (sys.executable, "-c", _HEAD, str(nodes)), subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    honest, greeter, *others = (
        Invitation(**each) for each in json.loads(await process.stdout.readline())
    )
    asking = HonestNode(honest)
    await asking.wait_for(200)
    process.stdin.write(b"the attack begins\n")
    await attack(messages, asking, greeter, others)
    process.stdin.close()
    result = json.loads(await process.stdout.readline())
    await asking.close()
    assert await process.communicate() == (b"", b"")
    usual, worst = result["worst"]
    print(f"{messages} messages: worst turn of the head {worst:.3f} s, before {usual:.3f} s")
    assert worst <= max(BLOCKED_S, 5 * usual)
    assert sorted(result["lost"]) == sorted(node.name for node in others)
    assert all(
        why.isprintable() and "it sent an invalid message" in why for why in result["lost"].values()
    )
