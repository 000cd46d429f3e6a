"""Shells, groups and signals of leased slots: what a container has, with the end of the lease as
their end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import ContainerStateError, SpecError, StaleLeaseError
from tests.contract.pools import containers, make_pool, shell, until

pytestmark = pytest.mark.engine

FACTS = "id; pwd; echo $HOME $TMPDIR"
ISOLATIONS: dict[str, dict[str, Any]] = {
    "user": {},
    "directory": {"isolation": "directory", "slots_per_container": 2},
    "container": {"slots_per_container": 1},
}


def nap() -> str:
    """Return a command that sleeps and that no other test of this machine uses."""
    return f"sleep 86{int.from_bytes(os.urandom(3)):08}"


async def naps(pool: hr.SlotPool, command: str) -> bool:
    """Return whether a process in the pool's container runs a command."""
    listed = await containers(pool)[0].aexec(["ps", "-axo", "stat=,args="])
    lines = [line.split(maxsplit=1) for line in listed.stdout.decode().splitlines()]
    return any(args.strip() == command for state, args in lines if not state.startswith("Z"))


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_slots_shell_runs_as_the_slot_and_keeps_its_state(
    runtime: hr.Runtime, base_image: str, isolation: str
) -> None:
    async with (
        make_pool(runtime, base_image, **ISOLATIONS[isolation]) as pool,
        pool.lease() as lease,
    ):
        facts = await shell(lease, FACTS)
        await shell(lease, "mkdir sub")
        async with await lease.shell(workdir="sub", env={"GIVEN": "a 'b'"}) as opened:
            assert (
                await opened.arun("pwd; echo $GIVEN")
            ).stdout.decode() == f"{lease.slot.workspace}/sub\na 'b'\n"
            assert (await opened.arun(f"word=kept; cd ..; {FACTS}")).stdout.decode() == facts
            assert (await opened.arun("echo $word")).stdout == b"kept\n"
        with pytest.raises(ContainerStateError, match="closed"):
            await opened.arun("echo")


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_slots_shells_end_with_the_lease_and_leave_nothing(
    runtime: hr.Runtime, base_image: str, isolation: str
) -> None:
    job, text = nap(), nap()

    async with make_pool(runtime, base_image, **ISOLATIONS[isolation]) as pool:
        async with pool.lease("one") as lease:
            ended = await lease.shell()
            await ended.arun(f"{job} &")
            await lease.end_processes()
            with pytest.raises(ContainerStateError, match="closed"):
                await ended.arun("echo")
            exchange = containers(pool)[0].exchange.source
            lanes, descriptors = len(os.listdir(exchange)), len(os.listdir("/proc/self/fd"))
            idle, busy = await lease.shell(group="g"), await lease.shell()
            await idle.arun(f"{job} &")
            running = asyncio.ensure_future(asyncio.to_thread(busy.run, text))
            while not (await naps(pool, text) or running.done()):
                await asyncio.sleep(0.01)
        with pytest.raises(StaleLeaseError):
            await lease.shell()
        assert (await asyncio.wait_for(running, 60)).exit_code == 137
        await pool.settle()
        for opened in (idle, busy):
            with pytest.raises(ContainerStateError, match="closed"):
                opened.run("echo")
        if isolation == "container" or not runtime.info.users:
            return  # the slot has a new container
        assert idle.close()
        assert busy.close()
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert not await naps(pool, job)
        assert not await naps(pool, text)
        assert len(os.listdir(exchange)) <= lanes


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_signal_reaches_the_commands_of_one_group_of_one_slot(
    runtime: hr.Runtime, base_image: str, isolation: str
) -> None:
    """The other group and the other slot, which uses the same name, must not get it."""

    options = ISOLATIONS[isolation]
    async with make_pool(runtime, base_image, **options) as pool, pool.lease() as lease:
        said: list[bytes] = []
        script = ["sh", "-c", f"trap 'echo heard; exit 3' INT; echo up; {nap()} & wait"]
        other = await lease.spawn(script, group="other")
        strange = None
        if isolation == "directory" or (isolation == "user" and runtime.info.users):
            strange = await pool.lease_of(await pool.acquire()).spawn(script, group="build")
        builds = [
            asyncio.ensure_future(
                lease.exec(script, group="build", on_output=lambda _, chunk: said.append(chunk))
            )
            for _ in range(2)
        ]
        await until(lambda: said == [b"up\n"] * 2)
        for kept in filter(None, (other, strange)):
            await until(lambda kept=kept: kept.stdout == b"up\n")  # type: ignore[misc]
        assert await lease.signal_group("build", signal.SIGINT)
        for build in builds:
            result = await asyncio.wait_for(build, 60)
            assert (result.exit_code, result.stdout) == (3, b"up\nheard\n")
        assert not await lease.signal_group("unknown", signal.SIGINT)
        with pytest.raises(SpecError, match="signal"):
            await lease.signal_group("build", 0)
        assert await lease.end_group("build")
        for kept in filter(None, (other, strange)):
            assert (kept.poll(), kept.stdout) == (None, b"up\n")
        assert await lease.end_group("other")
        assert (await asyncio.wait_for(other.await_end(), 60)).exit_code == 137
        await lease.spawn(["sleep", "300"], group="late")
        await lease.end_processes()
        assert not await lease.signal_group("late", signal.SIGINT)


def test_a_program_without_asyncio_has_the_same(runtime: hr.Runtime, base_image: str) -> None:
    script, signalled = ["sh", "-c", "echo up; exec sleep 300"], list[bool]()

    with hr.open_pool(hr.ContainerSpec(image=base_image), runtime) as pool:
        with pool.lease() as lease:

            def interrupt(*_: object) -> None:
                signalled.append(lease.signal_group("build", signal.SIGINT))

            assert lease.exec(script, group="build", on_output=interrupt).exit_code == 130
            assert signalled == [True]
            grouped, alone, opened = (
                lease.spawn(script, group="build"),
                lease.spawn(script),
                lease.shell(),
            )
            assert lease.end_group("build")
            assert grouped.wait(60).exit_code == 137
            assert opened.run("word=kept").exit_code == 0
            assert opened.run("echo $word").stdout == b"kept\n"
            lease.end_processes()
            assert alone.wait(60).exit_code == 137
            with pytest.raises(ContainerStateError, match="closed"):
                opened.run("echo")
            opened = lease.shell()
            assert opened.run("echo on").stdout == b"on\n"
        pool.settle()
        with pytest.raises(ContainerStateError, match="closed"):
            opened.run("echo")
