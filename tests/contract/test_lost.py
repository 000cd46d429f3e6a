"""A container that ends is told as such: never a hang, never a false success, and with what is known of its end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.driver import PostMortem
from hyperruntime.errors import ContainerLostError, ContainerStateError, UnsupportedOptionError

pytestmark = pytest.mark.engine

SUPERVISOR = (
    "for p in /proc/[0-9]*; do read -r name <$p/comm; [ $name = sh ] && echo ${p#/proc/}; done | sort -n | head -1"
)


@pytest.fixture
def doomed(runtime: hr.Runtime, base_image: str) -> hr.Container:
    return runtime.container(hr.ContainerSpec(image=base_image))


@pytest.mark.parametrize(
    "script",
    ["kill -9 -1; sleep 60", f"kill -9 $({SUPERVISOR}); sleep 60"],
    ids=["everything", "the supervisor"],
)
def test_a_command_that_ends_its_container_gets_an_error_with_a_post_mortem(doomed: hr.Container, script: str) -> None:
    with doomed, ThreadPoolExecutor(3) as threads:
        siblings = [threads.submit(doomed.exec, ["sleep", "60"]) for _ in range(3)]
        time.sleep(0.3)
        begin = time.monotonic()
        with pytest.raises(ContainerLostError, match="exited") as caught:
            doomed.exec(["sh", "-c", script])
        assert time.monotonic() - begin < 60
        assert isinstance(caught.value.post_mortem, PostMortem)
        for sibling in siblings:
            with pytest.raises(ContainerLostError):
                sibling.result(timeout=60)
        with pytest.raises(ContainerLostError):
            doomed.exec(["true"])


def test_a_container_that_is_removed_from_outside_is_lost(doomed: hr.Container, engine_command: Any) -> None:
    with doomed, ThreadPoolExecutor(1) as threads:
        running = threads.submit(doomed.exec, ["sleep", "60"])
        time.sleep(0.3)
        engine_command.remove(doomed.name)
        with pytest.raises(ContainerLostError):
            running.result(timeout=60)


def test_a_stopped_supervisor_is_no_hang(doomed: hr.Container) -> None:
    with doomed:
        begin = time.monotonic()
        result = doomed.exec(["sh", "-c", f"kill -STOP $({SUPERVISOR}); setsid sleep 60"], timeout_s=6)
        assert time.monotonic() - begin < 60
        assert result.timed_out  # the host has ended it
        begin = time.monotonic()
        with pytest.raises(ContainerLostError):
            doomed.exec(["true"])
        assert time.monotonic() - begin < 60


def test_a_command_past_the_memory_limit_is_killed_and_the_post_mortem_knows(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(memory_bytes=64 * 1024**2))
    if runtime.info.limits["memory_bytes"] == "no":
        with pytest.raises(UnsupportedOptionError, match="memory_bytes"):
            runtime.container(spec)
        return
    with runtime.container(spec) as started:
        flood = "blocks = []\nwhile True: blocks.append(bytearray(1 << 20))"
        assert started.exec(["python3", "-c", flood]).exit_code == 137
        assert started.exec(["echo", "usable"]).stdout == b"usable\n"
        with pytest.raises(ContainerLostError, match="memory limit") as caught:
            started.exec(["sh", "-c", "kill -9 -1; sleep 9"])
        assert isinstance(caught.value.post_mortem, PostMortem)
        assert caught.value.post_mortem.oom_killed


def test_a_full_tmpfs_is_the_commands_own_failure(runtime: hr.Runtime, base_image: str) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(tmpfs_bytes=4 * 1024**2))
    with runtime.container(spec) as started:
        result = started.exec(["dd", "if=/dev/zero", "of=/tmp/full", "bs=1M", "count=9"])
        assert result.exit_code == 1
        assert b"No space left" in result.stderr
        assert started.exec(["echo", "usable"]).stdout == b"usable\n"


def test_a_closed_container_says_so_and_closing_twice_is_fine(doomed: hr.Container) -> None:
    exchange = Path(doomed._dir)
    doomed.close()
    doomed.close()
    assert not exchange.exists()
    with pytest.raises(ContainerStateError, match="closed"):
        doomed.exec(["true"])


def test_closing_while_commands_run_ends_them(doomed: hr.Container) -> None:
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(doomed.exec, ["sleep", "600"]) for _ in range(4)]
        time.sleep(0.3)
        begin = time.monotonic()
        doomed.close()
        assert time.monotonic() - begin < 60
        for future in running:
            with pytest.raises((ContainerLostError, ContainerStateError)):
                future.result(timeout=60)


def test_the_end_of_a_container_is_heard_at_once(runtime: hr.Runtime, base_image: str) -> None:
    """R13: without asking the engine, by a callback and by an await, whatever ended it."""

    async def scenario(started: hr.Container) -> None:
        waiting = asyncio.create_task(started.ended())
        await asyncio.sleep(0.1)
        assert started.is_alive
        assert not waiting.done()
        threading.Thread(target=started._live.remove).start()  # as `podman kill` would
        await asyncio.wait_for(waiting, 60)
        assert not started.is_alive

    heard, late = threading.Event(), threading.Event()
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        started.on_end(heard.set)
        forget = started.on_end(late.set)
        forget()
        asyncio.run(scenario(started))
        assert heard.wait(60)
        assert not late.is_set()
    closed = runtime.container(hr.ContainerSpec(image=base_image))
    closed.on_end(late.set)
    closed.close()
    assert late.wait(60)
    assert not closed.is_alive
    again = threading.Event()
    closed.on_end(again.set)
    assert again.is_set()
