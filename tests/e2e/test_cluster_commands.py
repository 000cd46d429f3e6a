"""Processes, terminals, shells and ports in slots of a node that is a process of this machine, on a
real engine.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecStartError,
    PoolError,
    SpecError,
    StaleLeaseError,
)
from hyperruntime.remote.sandbox import RemoteSandbox

pytestmark = pytest.mark.engine

ECHO_SERVER = """
import socket, threading
def serve(client):
    data = b""
    while chunk := client.recv(65536):
        data += chunk
    client.sendall(data[::-1])
    client.close()
listener = socket.create_server(("127.0.0.1", 8321), backlog=128)
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.mark.slow
async def test_a_slot_of_a_node_has_the_processes_terminals_shells_and_ports_of_a_lease_here(
    runtime: hr.Runtime, runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    config = hr.PoolConfig(
        spec=hr.ContainerSpec(image=base_image), slots_per_container=1, max_containers=1
    )
    nodes = hr.ClusterConfig(min_nodes=1, max_nodes=1, runtime=runtime_name)

    async with (
        hr.Cluster(nodes, tmp_path / "jobs") as cluster,
        hr.ClusterPool(cluster, config) as pool,
    ):
        for part in (use_processes, use_terminals, use_shells, use_ports):
            async with pool.lease(timeout_s=60) as lease:
                await part(lease)
        await end_with_the_lease(pool)
        await keep_what_a_kept_slot_has(pool)


async def use_processes(lease: RemoteSandbox) -> None:
    async with await lease.spawn(["sh", "-c", "cat; echo bye >&2; exit 7"]) as process:
        assert process.poll() is None
        await process.awrite(b"first ")
        assert await until(process.read, b"first ")
        data = bytes(range(256)) * 8192
        await process.awrite(data)
        process.close_stdin()
        result = await process.await_end()
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"first " + data, b"bye\n")
        with pytest.raises(BrokenPipeError):
            await process.awrite(b"late")

    async with await lease.spawn(
        ["sh", "-c", "exec <&-; echo up; exec sleep 300"], group="mine"
    ) as process:
        assert await until(process.read, b"up\n")
        with pytest.raises(BrokenPipeError):
            await process.awrite(bytes(4 * 1024**2))  # nothing reads it
        with pytest.raises(PoolError, match="asignal"):
            process.interrupt()  # this event loop would wait for itself
        assert await process.ainterrupt()
        assert (await process.await_end()).exit_code == 130
        assert not await process.asignal(signal.SIGTERM)

    with pytest.raises(PoolError, match="await"):
        (await lease.spawn(["sleep", "299"])).wait()
    async with await lease.spawn(["sh", "-c", "sleep 298 & echo left"], input=b"") as process:
        assert (await process.await_end()).stdout == b"left\n"
        assert await is_running(lease, "sleep 298")
    assert not await is_running(lease, "sleep 298")

    async with await lease.spawn(["cat"], input=b"given", timeout_s=60) as process:
        assert (await process.await_end()).stdout == b"given"
    late = await lease.spawn(["sleep", "300"], timeout_s=0.3)
    assert (await late.await_end()).timed_out
    assert (await (await lease.spawn(["no-such-program"])).await_end()).not_executed


async def use_terminals(lease: RemoteSandbox) -> None:
    async with await lease.terminal(["sh"], rows=30, cols=90, env={"PS1": "$ "}) as terminal:
        assert terminal.name.startswith("/dev/pts/")
        await terminal.awrite(b"stty size\r")
        assert b"30 90" in await read_until(terminal, b"30 90")
        terminal.resize(40, 100)
        await terminal.awrite(b"stty size\r")
        # a command that is typed before the prompt has it in its output
        await read_until(terminal, b"40 100\r\n$ ")
        # which says that it is in the foreground
        await terminal.awrite(b"sh -c 'echo go; exec sleep 300'\r")
        await read_until(terminal, b"\ngo")
        terminal.interrupt()
        await terminal.awrite(b"echo $? and on\r")
        await read_until(terminal, b"130 and on\r\n$ ")
        with pytest.raises(TimeoutError):
            await terminal.aread(0.3)
        await terminal.awrite(b"exit 9\r")
        assert await terminal.await_end() == 9

    # its end is read after the command's
    async with await lease.terminal(["seq", "1", "100000"]) as terminal:
        text = await read_until(terminal, None)
        assert text.split() == [b"%d" % number for number in range(1, 100001)]
        assert terminal.poll() == 0
        with pytest.raises(BrokenPipeError):
            await terminal.awrite(b"late")
    with pytest.raises(SpecError, match="rows"):
        await lease.terminal(["sh"], rows=0)
    with pytest.raises(ExecStartError):
        await lease.terminal(["sh"], workdir="/no/such/directory")


async def use_shells(lease: RemoteSandbox) -> None:
    async with await lease.shell(env={"WORD": "said"}) as shell:
        assert (await shell.arun("cd /; f() { echo $WORD $1; }")).exit_code == 0
        assert (await shell.arun("f $PWD; false")).stdout == b"said /\n"
        assert shell.exit_code == 1
        assert (await asyncio.to_thread(shell.run, "cat", input=b"in")).stdout == b"in"
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hear(*_: object) -> None:
            loop.call_soon_threadsafe(begun.set)

        text = asyncio.ensure_future(shell.arun("echo up; sleep 298", on_output=hear))
        await begun.wait()
        # before, a signal may be lost between bash's fork and exec
        while not await is_running(lease, "sleep 298"):
            await asyncio.sleep(0.05)
        assert await shell.ainterrupt()
        assert (await text).exit_code == 130
        assert (await shell.arun("sleep 300", timeout_s=0.3)).timed_out
        text = asyncio.ensure_future(shell.arun("sleep 297"))
        while not await is_running(lease, "sleep 297"):
            await asyncio.sleep(0.05)
        text.cancel()
        await asyncio.wait({text})
        assert (await shell.arun("f again")).stdout == b"said again\n"
        assert not await is_running(lease, "sleep 297")
    with pytest.raises(ContainerStateError, match="closed"):
        await shell.arun("true")


async def use_ports(lease: RemoteSandbox) -> None:
    server = await lease.spawn(["python3", "-c", ECHO_SERVER])
    assert await until(server.read, b"up\n")
    address = await lease.forward(8321)
    assert address == await lease.forward(8321)

    async def talk(number: int) -> None:
        data = b"%d" % number * 100_000
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data[::-1]
        writer.close()

    await asyncio.gather(*map(talk, range(20)))
    with pytest.raises(SpecError, match="host"):
        await lease.forward(8321, host="192.0.2.1")
    with pytest.raises(SpecError, match="host"):
        await lease.forward(8321, host="")
    with pytest.raises(SpecError, match="port"):
        await lease.forward(0)
    await lease.pool.release(lease.slot)
    assert await is_closed(address)
    await ends_with_its_container(server)


async def is_closed(address: tuple[str, int]) -> bool:
    try:
        reader, _ = await asyncio.open_connection(*address)
        return not await reader.read(1)
    except OSError:
        return True


async def ends_with_its_container(command: hr.Process | hr.Terminal) -> None:
    try:
        end = await command.await_end()
    except (ContainerLostError, StaleLeaseError):
        return
    assert (end if isinstance(end, int) else end.exit_code) == 137


async def end_with_the_lease(pool: hr.ClusterPool) -> None:
    slot = await pool.acquire(timeout_s=60)
    lease = pool.lease_of(slot)
    process, shell = await lease.spawn(["sleep", "296"]), await lease.shell()
    terminal = await lease.terminal(["sleep", "295"])
    await shell.arun("sleep 294 & true")
    await pool.release(slot)
    await ends_with_its_container(process)
    await ends_with_its_container(terminal)
    with pytest.raises(ContainerStateError, match="released"):
        await shell.arun("true")
    for one in (process, terminal, shell):
        await one.aclose()


async def keep_what_a_kept_slot_has(pool: hr.ClusterPool) -> None:
    slot = await pool.acquire("kept", timeout_s=60)
    process = await pool.lease_of(slot).spawn(["sleep", "293"])
    await pool.release(slot, reset_workspace=False)
    assert process.poll() is None
    slot = await pool.acquire("kept", timeout_s=60)
    assert await is_running(pool.lease_of(slot), "sleep 293")
    assert await process.asignal(signal.SIGTERM)
    assert (await process.await_end()).exit_code == 143
    gone = weakref.ref(process)
    del process
    gc.collect()
    assert gone() is None, "the head keeps processes that nobody uses"

    blocked = threading.Event()

    def wait(*_: object) -> None:
        blocked.wait(60)

    process = await pool.lease_of(slot).spawn(["yes"], on_output=wait)
    await asyncio.wait_for(pool.release(slot), 30)  # which waits for no callback
    blocked.set()
    await ends_with_its_container(process)


async def is_running(lease: RemoteSandbox, words: str) -> bool:
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    return words.encode() in (await lease.exec(["sh", "-c", script])).stdout


async def until(read: Callable[[], bytes], expected: bytes) -> bool:
    """Return whether a process writes exactly this, sooner or later."""
    found = b""
    while len(found) < len(expected):
        found += read()
        await asyncio.sleep(0.01)
    return found == expected


async def read_until(terminal: hr.Terminal, expected: bytes | None) -> bytes:
    """Return the output of a terminal up to a text, or to its end."""
    found = b""
    while expected is None or expected not in found:
        chunk = await terminal.aread(60)
        found += chunk
        if not chunk:
            break
    return found
