"""The connection between the head and a node: nothing lost, doubled or out of order, whatever
breaks.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
from aiohttp import WSMessage, WSMsgType
from hypothesis import example, given
from hypothesis import strategies as st

import hyperruntime
from hyperruntime.cluster.head import Head, Invitation, Node
from hyperruntime.cluster.hello import Facts
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.errors import (
    ClusterError,
    HyperRuntimeError,
    NodeLostError,
    SandboxLostError,
    SpecError,
)
from hyperruntime.wire.channel import LARGEST_MESSAGE_BYTES, MOST_UNCONFIRMED_BYTES, Channel
from hyperruntime.wire.messages import PeerFaultError, error_of_json, error_to_json, pack, unpack
from hyperruntime.wire.peer import Answer, Call, Handler, Streams
from tests.doubles.relay import Relay
from tests.params import first_quick

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(), JSON), st.binary())
def test_a_message_arrives_as_it_was_sent(header: dict[str, object], body: bytes) -> None:
    assert unpack(pack(header, body)) == (header, body)


@given(st.binary())
def test_a_frame_of_any_bytes_is_read_or_refused(frame: bytes) -> None:
    try:
        unpack(frame)
    except ValueError:
        return
    assert len(frame) > 4


@given(JSON | st.dictionaries(st.sampled_from(["class", "text", "fields"]), JSON))
def test_an_error_of_any_json_is_one_of_ours(value: object) -> None:
    assert isinstance(error_of_json(value), HyperRuntimeError)


def test_an_error_keeps_its_class_its_words_and_its_fields() -> None:
    sent = SpecError("image", "", "a name")
    came = error_of_json(error_to_json(sent))
    assert (type(came), str(came), vars(came)) == (SpecError, str(sent), vars(sent))
    assert str(error_of_json(error_to_json(KeyError("x")))) == "KeyError: 'x'"
    assert (
        type(error_of_json({"class": "subprocess", "text": "a", "fields": {}})) is HyperRuntimeError
    )


async def echo(call: Call) -> Answer:
    if call.args.get("fail"):
        raise SpecError("fail", True, "nothing")
    if call.args.get("cancelled"):
        awaited = asyncio.get_running_loop().create_future()
        awaited.cancel()
        await awaited
    for number in range(call.args.get("events", 0)):
        await call.emit(Answer(number, call.body))
    await asyncio.sleep(call.args.get("sleep_s", 0))
    return Answer(call.args, call.body)


@attrs.frozen
class Pair:
    head: Head
    node: Node
    invitation: Invitation
    relay: Relay
    server: NodeServer
    served: asyncio.Task[None]


@asynccontextmanager
async def pair(
    *,
    patience_s: float = 20.0,
    heartbeat_s: float = 1.0,
    on_node: Mapping[str, Handler] | None = None,
    on_head: Mapping[str, Handler] | None = None,
) -> AsyncIterator[Pair]:
    head, relay = Head(on_head, heartbeat_s=heartbeat_s, patience_s=patience_s), Relay()
    await head.start("127.0.0.1")
    invitation = head.invite("n1")
    address = await relay.start(int(invitation.addresses[0].rpartition(":")[2]))
    server = NodeServer(attrs.evolve(invitation, addresses=(address,)), on_node or {"echo": echo})
    served = asyncio.ensure_future(server.serve())
    node = head.nodes["n1"]
    await asyncio.wait_for(node.joined.wait(), 120)
    try:
        yield Pair(head, node, invitation, relay, server, served)
    finally:
        served.cancel()
        await asyncio.wait([served])
        await head.stop()
        if relay.server is not None:
            relay.server.close()


async def test_a_call_that_is_cancelled_while_nothing_flows_takes_no_other_with_it() -> None:
    async with pair() as made:
        made.relay.flows.clear()
        body = bytes(1 << 20)
        large = [
            asyncio.ensure_future(made.node.peer.call("echo", {"n": n}, body)) for n in range(14)
        ]
        await asyncio.sleep(0.3)
        small = [asyncio.ensure_future(made.node.peer.call("echo", {"n": n})) for n in range(14)]
        await asyncio.sleep(0)
        for call in (*large[::2], *small[::2]):
            call.cancel()
        made.relay.flows.set()
        answers = await asyncio.wait_for(asyncio.gather(*large[1::2], *small[1::2]), 30)
        assert [answer.value["n"] for answer in answers] == [*range(1, 14, 2)] * 2
        assert (await made.node.peer.call("echo", {}, b"after")).body == b"after"


class Socket:
    """A connection that receives nothing, and that ends when it may."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.may_end = asyncio.Event()

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    def __aiter__(self) -> Socket:
        return self

    async def __anext__(self) -> Any:
        await self.may_end.wait()
        raise StopAsyncIteration

    async def close(self) -> None:
        await self.may_end.wait()


async def test_the_last_of_three_connections_at_once_carries_the_frames() -> None:
    """A node that dials again and again while its first connection takes long to end."""

    channel, (first, second, third) = Channel(lambda frame: None), (Socket() for _ in range(3))
    carried = [asyncio.ensure_future(channel.carry(first, 0))]
    while not channel.is_connected:
        await asyncio.sleep(0)
    carried += [asyncio.ensure_future(channel.carry(socket, 0)) for socket in (second, third)]
    await asyncio.sleep(0)
    first.may_end.set()
    await asyncio.wait([carried[1]])
    second.may_end.set()
    await channel.send(b"x")
    while not third.sent:
        await asyncio.sleep(0)
    assert (channel.is_connected, first.sent, second.sent, third.sent[0][-1:]) == (
        True,
        [],
        [],
        b"x",
    )
    third.may_end.set()
    channel.close(NodeLostError("the test ends"))
    await asyncio.wait(carried)


async def test_calls_answers_events_and_errors() -> None:
    async with pair() as made:
        events: list[Answer] = []
        answer = await made.node.peer.call("echo", {"events": 3}, b"\0\xff", on_event=events.append)
        assert answer == Answer({"events": 3}, b"\0\xff")
        assert events == [Answer(0, b"\0\xff"), Answer(1, b"\0\xff"), Answer(2, b"\0\xff")]
        with pytest.raises(SpecError, match="fail=True"):
            await made.node.peer.call("echo", {"fail": True})
        with pytest.raises(HyperRuntimeError, match="CancelledError"):
            await made.node.peer.call("echo", {"cancelled": True})
        with pytest.raises(HyperRuntimeError, match="knows no method 'nothing'"):
            await made.node.peer.call("nothing")
        assert made.node.facts.pid == os.getpid()


async def shout(call: Call) -> Answer:
    assert call.read is not None
    while piece := await call.read():
        await call.emit(Answer("loud", piece.upper()))
    return Answer("done")


async def test_the_streams_of_a_call_go_piece_by_piece_and_their_errors_reach_the_caller() -> None:
    async with pair(on_node={"shout": shout, "echo": echo}) as made:
        steps = list[bytes]()
        pieces = iter((b"one", b"two", b""))

        async def read() -> bytes:
            steps.append(b"read")
            return next(pieces)

        async def write(event: Answer) -> None:
            await asyncio.sleep(0.05)
            steps.append(event.body)

        peer = made.node.peer
        answer = await peer.call("shout", streams=Streams(read, write))
        assert answer.value == "done"
        assert steps == [b"read", b"ONE", b"read", b"TWO", b"read"]

        async def fail() -> bytes:
            raise ZeroDivisionError("of the caller")

        with pytest.raises(ZeroDivisionError, match="of the caller"):
            await peer.call("shout", streams=Streams(fail, write))
        never = asyncio.Event()

        async def hang(_: Answer) -> None:
            await never.wait()

        stuck = asyncio.ensure_future(peer.call("echo", {"events": 2}, streams=Streams(write=hang)))
        assert (await peer.call("echo", {}, b"meanwhile")).body == b"meanwhile"
        stuck.cancel()
        with pytest.raises(HyperRuntimeError, match="has ended"):
            await made.server.peer.call("stream.read", {"call": 10**9})
        with pytest.raises(HyperRuntimeError, match="has ended"):
            await made.server.peer.call("stream.read", {"call": [1]})
        assert made.node.lost is None


async def test_a_node_that_uses_a_stream_that_its_call_does_not_have_is_lost() -> None:
    async def take(call: Call) -> Answer:
        number = next(iter(made.server.peer._running))
        return await made.server.peer.call("stream.read", {"call": number})

    async with pair(on_node={"take": take}) as made:
        with pytest.raises(NodeLostError, match="a stream that its call does not have"):
            await made.node.peer.call("take")


@pytest.mark.parametrize("seed", first_quick(*range(4)))
async def test_no_call_is_lost_or_doubled_while_the_connection_breaks_again_and_again(
    seed: int,
) -> None:
    rng, seen = random.Random(seed), []

    async def count(call: Call) -> Answer:
        seen.append(call.args["number"])
        await asyncio.sleep(rng.random() / 50)
        return Answer(call.args["number"], call.body)

    async with pair(on_node={"count": count}) as made:
        calls = [
            asyncio.ensure_future(
                made.node.peer.call("count", {"number": number}, rng.randbytes(rng.randrange(9000)))
            )
            for number in range(2000)
        ]
        for _ in range(12):
            await asyncio.sleep(rng.random() / 20)
            made.relay.cut()
        answers = await asyncio.gather(*calls)
    assert [answer.value for answer in answers] == list(range(2000))
    assert seen == list(range(2000)), "a call came twice, not at all, or in another order"


@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_call_waits_through_a_partition_that_is_shorter_than_the_patience(how: str) -> None:
    async with pair(heartbeat_s=0.3) as made:
        call = asyncio.ensure_future(made.node.peer.call("echo", {"sleep_s": 0.2}))
        await asyncio.sleep(0.05)
        made.relay.fail(how)
        # a silent connection is given up after 0.45 s
        await asyncio.sleep(0.9)
        assert not call.done()
        made.relay.recover()
        assert (await call).value == {"sleep_s": 0.2}
        assert made.node.lost is None


@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_after_a_longer_partition_the_node_ends_itself_and_the_head_fails_its_calls(
    how: str,
) -> None:
    async with pair(patience_s=0.5, heartbeat_s=0.3) as made:
        lost: list[NodeLostError] = []
        made.node.on_lost(lost.append)
        call = asyncio.ensure_future(made.node.peer.call("echo", {"sleep_s": 50}))
        await asyncio.sleep(0.05)
        made.relay.fail(how)
        with pytest.raises(
            SandboxLostError, match=r"node n1 \(.*\) is lost: no connection for 0.5 s"
        ):
            await call
        with pytest.raises(NodeLostError, match=r"the head did not answer for 0\.5 s"):
            # less than a dial without an answer takes by itself
            await asyncio.wait_for(made.served, 25)
        assert len(lost) == 1
        made.node.on_lost(lost.append)
        assert len(lost) == 2
        with pytest.raises(NodeLostError):
            await made.node.peer.call("echo")


async def test_a_cancelled_call_is_cancelled_on_the_node() -> None:
    ended = asyncio.Event()

    async def wait(_: Call) -> Answer:
        try:
            await asyncio.sleep(50)
        finally:
            ended.set()
        return Answer()

    async with pair(on_node={"wait": wait}) as made:
        call = asyncio.ensure_future(made.node.peer.call("wait"))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait_for(ended.wait(), 120)


async def test_only_an_expected_node_of_the_same_version_is_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, other = Head(), Head()
    await head.start("127.0.0.1")
    await other.start("127.0.0.1")
    invitation, foreign = head.invite("n1"), other.invite("n1")
    with pytest.raises(ClusterError, match="does not expect node n1"):
        await NodeServer(attrs.evolve(invitation, token="guessed"), {}).serve()
    quick = attrs.evolve(foreign, addresses=invitation.addresses, patience_s=0.3)
    # another certificate: the node does not even say its token
    with pytest.raises(NodeLostError):
        await NodeServer(quick, {}).serve()
    assert not head.nodes["n1"].joined.is_set()
    first = asyncio.ensure_future(NodeServer(invitation, {}).serve())
    await head.nodes["n1"].joined.wait()
    with pytest.raises(ClusterError, match="another process has this node's token"):
        await NodeServer(invitation, {}).serve()
    first.cancel()
    second = head.invite("n2")
    node_server = NodeServer(second, {})
    monkeypatch.setattr("hyperruntime.cluster.node_server.node_facts", Facts)
    real, told = hyperruntime.__version__, "0.0.1"
    with monkeypatch.context() as patched:
        patched.setattr("hyperruntime.cluster.node_server.own_version", lambda: told)
        with pytest.raises(
            ClusterError,
            match=f"has hyperruntime {told}, the head has {real}; install the same",
        ):
            await node_server.serve()
    assert head.nodes["n2"].lost is not None
    await head.stop()
    await other.stop()


async def test_a_full_channel_makes_callers_wait_and_nothing_is_lost() -> None:
    async with pair() as made:
        body = bytes(8 << 20)
        answers = await asyncio.gather(
            *(made.node.peer.call("echo", {"n": n}, body) for n in range(8))
        )
        assert [len(answer.body) for answer in answers] == [8 << 20] * 8
        made.relay.flows.clear()
        channel, nothing = made.node.peer.channel, pack({"is": "event", "id": 0}, body)
        sending = [asyncio.ensure_future(channel.send(nothing)) for _ in range(6)]
        await asyncio.sleep(0.2)
        assert sum(task.done() for task in sending) == MOST_UNCONFIRMED_BYTES // len(body)
        made.relay.flows.set()
        await asyncio.gather(*sending)


async def test_a_message_that_is_too_large_is_refused_and_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperruntime.wire.channel.LARGEST_FRAME_BYTES", 1 << 20)

    async def doubled(call: Call) -> Answer:
        return Answer(body=2 * call.body)

    async with pair(on_node={"double": doubled}) as made:
        for size in (600 << 10, 2 << 20):  # the answer, the call
            with pytest.raises(
                ClusterError,
                match=r"at most 1 MiB go between .* not \d{7} bytes; limit the output",
            ):
                await made.node.peer.call("double", {}, bytes(size))
        assert (await made.node.peer.call("double", {}, b"x")).body == b"xx"


async def test_an_address_in_use_is_named() -> None:
    head, second = Head(), Head()
    await head.start("127.0.0.1")
    port = int(head.invite("n").addresses[0].rpartition(":")[2])
    with pytest.raises(ClusterError, match=f"cannot listen on 127.0.0.1:{port}: .*; name another"):
        await second.start("127.0.0.1", port)
    await head.stop()


class Script(Socket):
    """A connection that receives what a test puts into it."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: asyncio.Queue[WSMessage] = asyncio.Queue()

    def put(self, kind: bytes, number: int, confirmed: int, content: bytes = b"") -> None:
        data = struct.pack(">cQQ", kind, number, confirmed) + content
        self.coming.put_nowait(WSMessage(WSMsgType.BINARY, data, None))

    async def __anext__(self) -> Any:
        return await self.coming.get()

    async def pong(self, data: bytes) -> None:
        self.sent.append(b"pong")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("received", [-1, 0, 1, 4, 1 << 64])
async def test_a_peer_that_says_it_has_what_it_cannot_have_is_refused(received: int) -> None:
    """Two of three frames are confirmed, so a new connection begins with frame 2 or 3."""

    channel, first, second = Channel(lambda frame: None), Script(), Script()
    carried = asyncio.ensure_future(channel.carry(first, 0))
    for _ in range(3):
        await channel.send(b"x")
    while len(first.sent) < 3:
        await asyncio.sleep(0)
    first.put(b"c", 0, 2)
    while first.coming.qsize():
        await asyncio.sleep(0)
    with pytest.raises(PeerFaultError, match=f"it has frame {received}, but 2 to 3 are possible"):
        await channel.carry(second, received)
    await carried
    third = Script()
    last = asyncio.ensure_future(channel.carry(third, 2))
    while not third.sent:
        await asyncio.sleep(0)
    assert third.sent[0][-1:] == b"x"
    channel.close(NodeLostError("the test ends"))
    await last


MESSAGES = st.tuples(
    st.sampled_from([b"f", b"p", b"c", b"x"]) | st.binary(min_size=1, max_size=1),
    st.integers(0, 5) | st.integers(0, (1 << 64) - 1),
    st.integers(0, 4) | st.integers(0, (1 << 64) - 1),
    st.binary(max_size=3),
)


@given(st.integers(0, 3), st.lists(MESSAGES, max_size=8))
@example(0, [(b"p", 1, 0, b"")])
def test_no_messages_of_a_peer_keep_the_event_loop_or_lose_a_frame(
    count: int, messages: list[tuple[bytes, int, int, bytes]]
) -> None:
    async def test() -> None:
        frames: list[bytes] = []
        channel, socket = Channel(frames.append), Script()
        for _ in range(count):
            channel.send_soon(b"x")
        for message in messages:
            socket.put(*message)
        socket.coming.put_nowait(WSMessage(WSMsgType.CLOSED, None, None))
        with suppress(PeerFaultError):
            await channel.carry(socket, 0)
        assert len(frames) == channel.received <= len(messages)
        again = Script()
        # an honest connection after it
        carried = asyncio.ensure_future(channel.carry(again, count))
        again.put(b"f", channel.received + 1, count, b"last")
        while not frames or frames[-1] != b"last":
            await asyncio.sleep(0)
        channel.close(NodeLostError("the test ends"))
        await asyncio.wait([carried])

    asyncio.run(asyncio.wait_for(test(), 60))


async def test_a_large_frame_comes_in_parts_also_over_two_connections() -> None:
    frames: list[bytes] = []
    sender, receiver, first, second = (
        Channel(lambda _: None),
        Channel(frames.append),
        Script(),
        Script(),
    )
    content = random.Random(1).randbytes(10 << 20)
    sender.send_soon(content)
    sending = asyncio.ensure_future(sender.carry(first, 0))
    while len(first.sent) < 2:
        await asyncio.sleep(0)
    sending.cancel()
    taking = Script()
    for data in first.sent[:2]:
        taking.coming.put_nowait(WSMessage(WSMsgType.BINARY, data, None))
    taking.coming.put_nowait(WSMessage(WSMsgType.CLOSED, None, None))
    await receiver.carry(taking, 0)
    assert (receiver.received, frames) == (2, [])
    sending = asyncio.ensure_future(sender.carry(second, 2))
    while not second.sent:
        await asyncio.sleep(0)
    rest = Script()
    rest.coming.put_nowait(WSMessage(WSMsgType.BINARY, second.sent[0], None))
    rest.coming.put_nowait(WSMessage(WSMsgType.CLOSED, None, None))
    await receiver.carry(rest, 0)
    assert frames == [content]
    assert max(map(len, (*first.sent, *second.sent))) < LARGEST_MESSAGE_BYTES
    sending.cancel()


async def test_pings_are_answered_but_not_thousands_of_them() -> None:
    channel, socket = Channel(lambda frame: None), Script()
    for _ in range(5000):
        socket.coming.put_nowait(WSMessage(WSMsgType.PING, b"", None))
    with pytest.raises(PeerFaultError, match="it sent more than 256 pings in a second"):
        await channel.carry(socket, 0)
    assert socket.sent == [b"pong"] * 256


async def test_a_node_cannot_keep_more_calls_waiting_than_the_head_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperruntime.wire.peer.MOST_CALLS", 20)

    async def wait(_: Call) -> Answer:
        await asyncio.Event().wait()
        return Answer()

    head = Head({"wait": wait})
    await head.start("127.0.0.1")
    server = NodeServer(head.invite("n1"), {})
    served = asyncio.ensure_future(server.serve())
    calls = [asyncio.ensure_future(server.peer.call("wait")) for _ in range(21)]
    with pytest.raises(ClusterError, match="does not expect node n1"):
        await served
    assert "more than 20 calls and" in str(head.nodes["n1"].lost)
    assert all(
        isinstance(error, NodeLostError)
        for error in await asyncio.gather(*calls, return_exceptions=True)
    )
    await head.stop()


@attrs.frozen
class Number:
    number: int


@pytest.mark.parametrize(
    "value", [None, [], {}, {"number": "1"}, {"number": 1, "more": 2}, "\x1b[2J"]
)
async def test_an_answer_or_arguments_that_cannot_be_read_lose_the_node_and_nothing_else(
    value: Any,
) -> None:
    async def take(call: Call) -> Answer:
        return Answer(call.values(Number).number)

    async def send(_: Call) -> Answer:
        return Answer(value)

    async with pair(on_node={"send": send}) as made:
        with pytest.raises(
            NodeLostError, match="it sent an invalid message: the answer of send cannot be read"
        ):
            await made.node.peer.ask(Number, "send")
    args = value if isinstance(value, dict) else {"number": value}
    async with pair(on_head={"take": take}, on_node={}) as made:
        with pytest.raises(NodeLostError):
            await made.server.peer.call("take", args)
        assert str(made.node.lost).isprintable()
        assert "the arguments of its call cannot be read" in str(made.node.lost)
