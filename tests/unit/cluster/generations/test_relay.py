"""Models for containers on nodes: requests reach the head's gateway, answers stream back, no key
leaves the head.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from hyperruntime.cluster.generations.models import NodeModels, RelayedModels
from hyperruntime.cluster.head import Head, Invitation
from hyperruntime.cluster.node_server import NodeServer
from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.errors import (
    BudgetExceededError,
    ClusterError,
    GatewayError,
    HyperRuntimeError,
    NodeLostError,
)
from hyperruntime.gateway import Budget, GatewayConfig, ModelRule, Seat, Upstream
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.model_access import ModelAccess
from tests.doubles.upstream import Script, ScriptedUpstream, chat, chat_stream, scripted_upstream
from tests.unit.gateway.rig import CHAT, UnixConnection

KEY = "sk-of-the-head-0123456789"


@attrs.frozen
class Rig:
    """A head with a gateway, and a node with models."""

    head: Head
    loop: Bridge
    models: RelayedModels
    access: ModelAccess
    upstream: ScriptedUpstream
    folder: Path
    closing: ExitStack

    def seat(self, step: str) -> Seat:
        (folder := self.folder / f"exchange-{step}").mkdir()
        return self.models.seat(step, str(folder))

    def post(self, seat: Seat, **body: object) -> UnixConnection:
        connection = self.connection(seat)
        text = json.dumps({"model": "m", "messages": [], **body})
        connection.request("POST", CHAT, text, {"Authorization": f"Bearer {seat.token}"})
        return connection

    def connection(self, seat: Seat) -> UnixConnection:
        connection = UnixConnection(seat.socket_path)
        self.closing.callback(connection.close)
        return connection

    def seats(self) -> list[str]:
        lines = (self.folder / "log").read_text().splitlines()
        return [json.loads(line)["seat"] for line in lines]


@contextmanager
def rig(place: Path, script: Script, **budget: int) -> Iterator[Rig]:
    (place / "key").write_text(KEY)
    (sockets := place / "s").mkdir()
    head_loop, node_loop = (
        Bridge("head", ClusterError),
        Bridge("node", ClusterError),
    )
    with scripted_upstream(script) as upstream:
        config = GatewayConfig(
            upstreams=(Upstream(name="u", url=upstream.url, key_file=str(place / "key")),),
            models=(ModelRule(name="m", upstream="u"),),
            budget=Budget(**budget),
            log=str(place / "log"),
        )
        options = GenerateOptions(domains="circle_packing", run_id="r")
        with ModelAccess(config, options) as access:
            served = NodeModels(sockets)
            head = Head(served.handlers)

            async def node() -> RelayedModels:
                server = NodeServer(invitation, {})
                serving = asyncio.ensure_future(server.serve())
                serving.add_done_callback(lambda task: task.cancelled() or task.exception())
                return RelayedModels(server.peer, 1, config.grace_s)

            async def joined() -> None:
                await asyncio.wait_for(head.nodes["n1"].joined.wait(), 120)

            head_loop.run(head.start("127.0.0.1"))
            invitation = head_loop.run(_invite(head))
            models = node_loop.run(node())
            head_loop.run(joined())
            with served.granted("n1", 1, access), ExitStack() as closing:
                yield Rig(head, head_loop, models, access, upstream, place, closing)
            head_loop.run(head.stop())
            for loop in (head_loop, node_loop):
                loop.run(cancel_other_tasks())
                loop.close()
        assert wait_until(lambda: list(sockets.iterdir()) == [], 120)


async def _invite(head: Head) -> Invitation:
    return head.invite("n1")


def test_requests_of_a_node_use_the_key_of_the_head_and_count_once(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat("hello", 10, 5)) as made:
        made.models.begin(1)
        first, second = made.seat("agent"), made.seat("evaluation")
        for seat in (first, second, second):
            answer = made.post(seat).getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["choices"][0]["message"]["content"] == "hello"
            seat.check()
        assert {received.headers["authorization"] for received in made.upstream.received} == {
            f"Bearer {KEY}"
        }
        usage = made.access.usage(1)
        assert usage is not None
        assert (usage.requests, usage.input_tokens, usage.output_tokens) == (3, 30, 15)
        assert sorted(made.seats()) == ["r/1/agent", "r/1/evaluation", "r/1/evaluation"]
        assert made.post(first, model="other").getresponse().status == 403
        other = made.connection(first)
        other.request("POST", CHAT, "{}", {"Authorization": f"Bearer {second.token}"})
        assert other.getresponse().status == 401
        first.close()
        first.close()
        with pytest.raises(OSError, match=r"No such file|refused"):
            made.post(first)
        with pytest.raises(GatewayError, match="the seat is closed"):
            first.check()


def test_a_stream_arrives_in_pieces_while_the_model_goes_on(tmp_path: Path) -> None:
    read_on, whole = threading.Event(), chat_stream("one", "two", "three")

    class Slow(tuple[bytes, ...]):
        """Its second piece comes when the client has read the first one."""

        __slots__ = ()

        def __iter__(self) -> Iterator[bytes]:
            yield whole.pieces[0]
            assert read_on.wait(120)
            yield from whole.pieces[1:]

    with rig(tmp_path, lambda _: attrs.evolve(whole, pieces=Slow())) as made:
        answer = made.post(made.seat("agent"), stream=True).getresponse()
        said = b""
        while b"one" not in said:
            said += answer.read1()
        assert b"two" not in said
        read_on.set()
        while piece := answer.read1():
            said += piece
        assert (
            said.index(b"one") < said.index(b"two") < said.index(b"three") < said.index(b"[DONE]")
        )


def test_a_large_answer_and_a_large_request_pass_whole(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat("x" * 3_000_000)) as made:
        answer = made.post(
            made.seat("agent"), messages=[{"role": "user", "content": "y" * 3_000_000}]
        ).getresponse()
        assert len(json.loads(answer.read())["choices"][0]["message"]["content"]) == 3_000_000
        assert len(made.upstream.received[0].body["messages"][0]["content"]) == 3_000_000


def test_a_budget_that_is_used_up_is_told_to_the_node(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat("hello"), requests=1) as made:
        seat, told = made.seat("agent"), threading.Event()
        seat.when_refused(told.set)
        assert made.post(seat).getresponse().status == 200
        assert not told.is_set()
        assert made.post(seat).getresponse().status == 403
        assert told.wait(120)
        with pytest.raises(
            BudgetExceededError, match="the budget of the run is used up: 1 of 1 requests"
        ):
            seat.check()


def test_a_client_that_leaves_ends_its_request_at_the_model(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat_stream("one", "two", pause_s=30)) as made:
        connection = made.post(made.seat("agent"), stream=True)
        assert wait_until(lambda: len(made.upstream.received) == 1, 120)
        connection.close()
        assert wait_until(lambda: made.upstream.gone == 1, 120)


def test_connections_that_arrive_while_their_seat_closes_are_closed(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat("hello")) as made:
        for number in range(20):
            seat = made.seat(f"step-{number}")
            clients = [made.connection(seat) for _ in range(8)]
            for client in clients:
                client.connect()
            seat.close()
            for client in clients:
                client.sock.settimeout(120)
                with suppress(ConnectionResetError):  # it was never accepted
                    assert client.sock.recv(1) == b""


def test_a_seat_leaves_no_folder_when_the_gateway_closes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closes(_: Seat) -> None:
        raise GatewayError("the gateway is closed; open a new one")

    with rig(tmp_path, lambda _: chat("hello")) as made:
        made.seat("agent")
        monkeypatch.setattr(Seat, "close", closes)
    assert list((tmp_path / "s").iterdir()) == []


def test_a_lost_node_ends_its_requests(tmp_path: Path) -> None:
    async def lose(head: Head) -> None:
        head.nodes["n1"].lose("the test says so")

    with rig(tmp_path, lambda _: chat_stream("one", "two", pause_s=30)) as made:
        seat = made.seat("agent")
        made.post(seat, stream=True)
        assert wait_until(lambda: len(made.upstream.received) == 1, 120)
        made.loop.run(lose(made.head))
        assert wait_until(lambda: made.upstream.gone == 1, 120)
        with pytest.raises((NodeLostError, HyperRuntimeError)):
            seat.check()


def test_a_seat_that_opens_while_its_node_is_lost_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, opened, open_seat = (
        threading.Event(),
        threading.Event(),
        list[Seat](),
        ModelAccess.seat,
    )

    def slow(access: ModelAccess, *where: Any) -> Seat:
        begun.set()
        assert go_on.wait(120)
        opened.append(open_seat(access, *where))
        return opened[0]

    async def lose(head: Head) -> None:
        head.nodes["n1"].lose("the test says so")

    monkeypatch.setattr(ModelAccess, "seat", slow)
    with rig(tmp_path, lambda _: chat("hello")) as made, ThreadPoolExecutor(1) as other:
        asking = other.submit(made.seat, "agent")
        assert begun.wait(120)
        made.loop.run(lose(made.head))
        with pytest.raises(HyperRuntimeError):
            asking.result(120)
        go_on.set()
        assert wait_until(lambda: list((tmp_path / "s").iterdir()) == [], 120)
        with pytest.raises(FileNotFoundError):
            made.connection(opened[0]).connect()


def test_a_node_may_use_only_generations_that_it_makes(tmp_path: Path) -> None:
    with rig(tmp_path, lambda _: chat("hello")) as made:
        made.models._genid = 2
        with pytest.raises(GatewayError, match="node n1 does not make generation 2"):
            made.seat("agent")
