"""Tools of slots that share a container: each works as its own user."""

from __future__ import annotations

import asyncio

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool.tools.dispatch import run_batch
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult, Slot
from tests.contract.toolplace import Desk

pytestmark = pytest.mark.engine

EVERYWHERE = ToolPolicy(file_roots=("/",))


def make_place(container: hr.Container, uid: int) -> SlotExec:
    area = f"/tmp/slots-of-tools-{uid}"
    script = (
        f"rm -rf {area}; mkdir -p {area}/workspace && chmod -R 700 {area} && chown -R "
        f"{uid}:{uid} {area}"
    )
    container.exec(["sh", "-c", script]).check()
    workspace, user = f"{area}/workspace", hr.RunAs(uid=uid)
    return SlotExec(
        container,
        slot_id=f"s{uid}",
        workspace=workspace,
        user=user,
        env={"HOME": workspace},
        isolation="uid",
    )


@pytest.fixture
def pair(container: hr.Container, has_users: bool) -> tuple[Desk, Desk]:
    """Two slots; if the engine has no users, they have the same workspace, because a container then
    has one slot.
    """
    if not has_users:
        with pytest.raises(hr.HyperRuntimeError, match="user"):
            container.exec(["true"], user=hr.RunAs(uid=41001))
    uids = (41001, 41002) if has_users else (0, 0)
    places = [
        make_place(container, uid)
        if uid
        else SlotExec(container, slot_id="s", workspace="/tmp", isolation="container")
        for uid in uids
    ]
    return Desk(slot_exec=places[0], policy=EVERYWHERE), Desk(
        slot_exec=places[1], policy=EVERYWHERE
    )


def test_no_tool_can_use_files_of_a_sibling_even_if_all_paths_are_allowed(
    pair: tuple[Desk, Desk], has_users: bool
) -> None:
    """W8, W14: in the public system, slots could read and write each other's files."""
    mine, other = pair
    assert other("write_file", path="secret", content="token").success
    secret = f"{other.slot_exec.workspace}/secret"

    results = [
        mine("read_file", path=secret),
        mine("write_file", path=secret, content="x"),
        mine("edit_file", path=secret, old="token", new="x"),
        mine("read_artifact", path=secret),
        mine("search", path=other.slot_exec.workspace, pattern="token"),
        mine("list_files", path=other.slot_exec.workspace),
        mine("archive_artifacts", path=other.slot_exec.workspace),
        mine("bash", command=f"cat '{secret}'"),
    ]

    assert has_users != any(result.success for result in results)
    assert other("read_file", path="secret").stdout == ("token" if has_users else "x")


def test_files_belong_to_the_user_of_the_slot(pair: tuple[Desk, Desk], has_users: bool) -> None:
    mine, _ = pair
    mine("write_file", path="d/f", content="x")

    whose = mine("bash", command="stat -c '%u %a' d/f; id -u").stdout.split()

    assert whose[0] == whose[2]
    assert (whose[0], whose[1]) == ("41001", "600") or not has_users


@attrs.frozen
class Gate:
    """Runs the requests of a batch, each in the slot of its name."""

    desks: dict[str, Desk]

    async def execute(
        self, slot: Slot, tool: str, args: object, timeout_s: float | None
    ) -> ExecutionResult:
        desk = self.desks[slot.slot_id]
        return await call_tool(desk.slot_exec, tool, args, timeout_s, desk.policy)  # type: ignore[arg-type]


def test_a_batch_runs_slots_in_parallel_and_the_calls_of_one_slot_in_order(
    container: hr.Container,
) -> None:
    """R16, W1, W11: order, isolated failures, separate timeouts, and an event loop that is not
    blocked.
    """
    names = ["a", "b", "c"]
    for name in names:
        container.exec(["mkdir", "-p", f"/tmp/batch-{name}"]).check()
    slots = {
        n: Slot(slot_id=n, generation=0, task_id="", profile="", workspace="", container="")
        for n in names
    }
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    async def run() -> list[ExecutionResult]:
        desks = {
            n: Desk(slot_exec=SlotExec(container, slot_id=n, workspace=f"/tmp/batch-{n}"))
            for n in names
        }
        ticker = asyncio.create_task(tick())
        meet = "touch ../batch-met-{}; until [ -e ../batch-met-{} ]; do sleep 0.02; done; echo met"
        results = await run_batch(
            [
                (slots["a"], "bash", {"command": meet.format("a", "b"), "timeout": 30}),
                (slots["b"], "bash", {"command": meet.format("b", "a"), "timeout": 30}),
                (slots["c"], "bash", {"command": "sleep 60", "timeout": 1}),
                (slots["a"], "bash", {"command": "echo n >> order"}),
                (slots["a"], "bash", {"command": "echo m >> order; cat order"}),
                (slots["c"], "nonsense", {}),
            ],
            Gate(desks).execute,
        )
        ticker.cancel()
        return results

    results = asyncio.run(run())

    assert [r.stdout for r in results[:2]] == ["met\n", "met\n"], "the two ran at the same time"
    assert results[2].timed_out
    assert results[4].stdout == "n\nm\n"
    assert "unknown tool" in results[5].error
    assert ticks > 10
    assert len({r.execution_id for r in results}) == 6


def test_calls_in_one_slot_run_in_the_order_of_their_start(container: hr.Container) -> None:
    """R16: this holds for all calls of a slot, not only for those of one batch."""
    container.exec(["mkdir", "-p", "/tmp/in-order"]).check()

    async def run() -> None:
        slot_exec = SlotExec(container, slot_id="x", workspace="/tmp/in-order")
        waits = ("0.4", "0.2", "0", "0.1")
        commands = [
            f"echo begin{n} >> log; sleep {wait}; echo end{n} >> log"
            for n, wait in enumerate(waits)
        ]
        await asyncio.gather(
            *(call_tool(slot_exec, "bash", {"command": command}) for command in commands)
        )

    asyncio.run(run())
    log = container.exec(["cat", "/tmp/in-order/log"]).stdout.decode().split()
    assert log == [f"{word}{n}" for n in range(4) for word in ("begin", "end")]


def test_cancelling_a_call_ends_its_command_and_frees_the_slot(container: hr.Container) -> None:
    async def run() -> ExecutionResult:
        slot_exec = SlotExec(container, slot_id="x", workspace="/tmp")
        task = asyncio.create_task(call_tool(slot_exec, "bash", {"command": "sleep 4321"}))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task])
        return await call_tool(
            slot_exec, "bash", {"command": "ps -axo args= | grep -c '[s]leep 4321'"}
        )

    assert asyncio.run(run()).stdout == "0\n"


@pytest.mark.parametrize(
    ("wanted", "network", "refused"), [(False, "none", 0), (True, "none", 1), (None, "none", 0)]
)
def test_a_call_is_refused_if_its_network_policy_cannot_be_met(
    container: hr.Container, wanted: bool | None, network: str, refused: bool
) -> None:
    """R19, W20."""
    assert container.spec.network == network
    desk = Desk(
        slot_exec=SlotExec(container, slot_id="n", workspace="/tmp"),
        policy=ToolPolicy(allow_network=wanted),
    )

    result = desk("bash", command="echo ran", allow_network=not wanted)

    assert (result.success, "requires a network" in result.error) == (not refused, bool(refused))
    other = Desk(slot_exec=SlotExec(container, slot_id="n", workspace="/tmp"), policy=desk.policy)
    other.slot_exec.network = "bridge"
    assert other("bash", command="true").success == (wanted is not False)
    assert other("bash", command="true").metadata["network"] == "bridge"


def test_tools_that_are_not_allowed_are_refused_by_every_name(container: hr.Container) -> None:
    """R9: a tool that the policy does not list is refused."""
    desk = Desk(
        slot_exec=SlotExec(container, slot_id="n", workspace="/tmp"),
        policy=ToolPolicy(tools=("terminal",)),
    )

    assert desk("bash", command="true").success
    assert desk("terminal", command="true").success
    refusal = desk("read_file", path="x")
    assert "not allowed here; allowed: bash, terminal" in refusal.error
    assert refusal.metadata["returncode"] is None
