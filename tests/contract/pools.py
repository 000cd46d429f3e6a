"""Helpers for tests of pools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import hyperruntime as hr

# Prints the pid of the library's own shell. Process 1 may be a shell that waits for it.
SUPERVISOR = (
    "for p in /proc/[0-9]*; do read -r name <$p/comm; [ $name = sh ] && echo ${p#/proc/}; done "
    "| grep -vx 1 | sort -n | head -1"
)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine."""
    asyncio.run(work())


def make_pool(runtime: hr.Runtime, image: str, **numbers: Any) -> hr.SlotPool:
    """Return a pool with one container of three slots (one if the engine has no users); ``numbers``
    override this.
    """
    slots = {
        "slots_per_container": 3 if runtime.info.users else 1,
        "min_containers": 1,
        "max_containers": 1,
    }
    spec = numbers.pop("spec", None) or hr.ContainerSpec(image=image)
    return hr.SlotPool(runtime, hr.PoolConfig(spec=spec, **{**slots, **numbers}))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time limit of the test is the deadline."""
    while not condition():
        await asyncio.sleep(0.02)


def containers(pool: hr.SlotPool) -> list[hr.Container]:
    """Return the containers of a pool; tests use them to run commands as the main user."""
    return [member.container for member in pool._fleet.roster.members]


async def shell(lease: hr.Sandbox, text: str, *, timeout_s: float = 60) -> str:
    """Run a script in a slot and return its output; the script must succeed."""
    result = await lease.exec(["bash", "-c", text], timeout_s=timeout_s)
    return result.check().stdout.decode()
