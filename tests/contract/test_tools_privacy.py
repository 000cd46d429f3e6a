"""Tools of slots that share a container: each works as its own user."""

from __future__ import annotations

import asyncio

import pytest

import hyperruntime as hr
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import call_tool
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult
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


async def test_calls_in_one_slot_run_in_the_order_of_their_start(container: hr.Container) -> None:
    """R16: this holds for all calls of a slot, not only for those of one batch."""
    container.exec(["mkdir", "-p", "/tmp/in-order"]).check()

    slot_exec = SlotExec(container, slot_id="x", workspace="/tmp/in-order")
    waits = ("0.4", "0.2", "0", "0.1")
    commands = [
        f"echo begin{n} >> log; sleep {wait}; echo end{n} >> log" for n, wait in enumerate(waits)
    ]
    await asyncio.gather(
        *(call_tool(slot_exec, "bash", {"command": command}) for command in commands)
    )
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
