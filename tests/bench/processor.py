"""Benchmarks of this process's processor time for each call, and of a persistent shell beside an
exec.

Processor time hardly depends on the load of the machine. It does depend on how far the calls are
apart: after a pause, memory that the call needs is no longer in the processor's caches.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import hyperruntime as hr
from hyperruntime.runtime import Runtime
from tests.bench.measure import Row, in_turn
from tests.bench.slots import pool_of

EACH, ROUNDS, APART_S = 50, 15, 0.02
# Before the savings of docs/design/exec.md#processor-time: how many times an `exec` of `true`
# from a thread.
BEFORE = {"exec": 2.1, "bash": 4.2, "bash_stateful": 2.3}
# its client does the work of `bash`; its run_in_session fails on a loaded machine
SWE_REX = "SWE-ReX's execute"
Calls = dict[str, Callable[[], Awaitable[object]]]


def shell_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure `:` in a persistent shell beside an exec of `true`."""
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        shell = container.shell()
        actions = {"shell": lambda: shell.run(":"), "exec": lambda: container.exec(["true"])}
        took = in_turn(actions, rounds=500)
        used = dict.fromkeys(actions, 0.0)
        for name, action in actions.items():
            used[name] = statistics.median(_used(action) for _ in range(ROUNDS))
        shell.close()
    return [
        _beside(what, values["shell"], "exec of `true`", values["exec"])
        for what, values in (
            ("`:` in a persistent shell", took),
            ("processor time of this process: `:` in a persistent shell", used),
        )
    ]


def _beside(what: str, ours_s: float, theirs: str, theirs_s: float) -> Row:
    return Row(
        what=what,
        value=ours_s * 1e3,
        unit="ms",
        compared_to=f"{theirs}: {theirs_s * 1e3:.2f} ms",
        ratio=ours_s / theirs_s,
        wanted="less",
        holds=ours_s < theirs_s,
    )


def _used(action: Callable[[], object]) -> float:
    begin = time.process_time()
    for _ in range(EACH):
        action()
    return (time.process_time() - begin) / EACH


def call_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure the processor time of this process for calls in a slot, one after another and 20 ms
    apart.
    """
    return asyncio.run(_call_rows(runtime, image))


async def _call_rows(runtime: Runtime, image: str) -> list[Row]:
    plain = runtime.container(hr.ContainerSpec(image=image))

    async def plain_exec() -> None:
        plain.exec(["true"])

    async with pool_of(runtime, image, 1) as pool, _swe_rex() as theirs:
        slot = await pool.acquire("t")
        lease = pool.lease_of(slot)
        calls: Calls = {
            "nothing": lambda: asyncio.sleep(0),
            "plain": plain_exec,
            "exec": lambda: lease.exec(["true"]),
            "bash": lambda: lease.tool("bash", {"command": "true"}),
            "bash_stateful": lambda: lease.tool("bash_stateful", {"command": "true"}),
            **theirs,
        }
        close = await _in_turn(calls, 0)
        apart = await _in_turn(calls, APART_S)
    plain.close()
    return [
        *(_call_row(name, "", close[name], close["plain"]) for name in BEFORE),
        *(
            _call_row(
                name, ", 20 ms after the last", apart[name] - apart["nothing"], close["plain"]
            )
            for name in BEFORE
        ),
        *(
            _beside(
                f"processor time of this process: `bash` in a slot{how}",
                used["bash"],
                SWE_REX,
                used[SWE_REX],
            )
            for how, used in (
                (" beside SWE-ReX", close),
                (" beside SWE-ReX, 20 ms after the last", apart),
            )
            if SWE_REX in theirs
        ),
    ]


@asynccontextmanager
async def _swe_rex() -> AsyncIterator[Calls]:
    """Yield the calls of SWE-ReX's client to a server of its own on this machine; none if it is not
    installed.
    """
    try:
        remote = importlib.import_module("swerex.runtime.remote")
        messages = importlib.import_module("swerex.runtime.abstract")
    except ImportError:
        print("`pip install swe-rex` adds rows that compare with it", file=sys.stderr)
        yield {}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port, token = free.getsockname()[1], uuid.uuid4().hex
    words = [
        "-m",
        "swerex.server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--auth-token",
        token,
    ]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [sys.executable, *words], stdin=quiet, stdout=quiet, stderr=quiet
    ) as server:
        try:
            client = remote.RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
            while not await client.is_alive(timeout=1):
                await asyncio.sleep(0.1)
            yield {SWE_REX: lambda: client.execute(messages.Command(command="true", shell=True))}
        finally:
            server.kill()


def _call_row(name: str, how: str, used_s: float, plain_s: float) -> Row:
    return Row(
        what=f"processor time of this process: one `{name}` call in a slot{how}",
        value=used_s * 1e3,
        unit="ms",
        compared_to=f"a plain exec: {plain_s * 1e3:.2f} ms"
        + ("" if how else f"; before: {BEFORE[name]}x"),
        ratio=used_s / plain_s,
    )


async def _in_turn(
    calls: dict[str, Callable[[], Awaitable[object]]], pause_s: float
) -> dict[str, float]:
    used: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        await call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.process_time()
            for _ in range(EACH):
                if pause_s:
                    await asyncio.sleep(pause_s)
                await call()
            used[name].append((time.process_time() - begin) / EACH)
    return {name: statistics.median(values) for name, values in used.items()}
