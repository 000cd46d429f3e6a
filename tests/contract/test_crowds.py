"""Many containers in one process: what an idle one holds, limits on open files, closing together,
and event loops.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import EngineError, ProcessLimitError
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.runtime import Runtime
from hyperruntime.testing.driver import IMAGE, FakeDriver, FakeLiveContainer

pytestmark = pytest.mark.engine

FAKE = hr.ContainerSpec(image=IMAGE, limits=hr.Limits(pids=None))
# Starts containers, uses each, and prints what they hold together and which limit on open files
# their commands have.
CROWD = textwrap.dedent(
    """
    import os, sys, threading
    from concurrent.futures import ThreadPoolExecutor
    import hyperruntime as hr
    from hyperruntime.runtime import Runtime
    from hyperruntime.testing.driver import FakeDriver
    name, image, count, raised = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "raised"
    if raised:
        hr.raise_file_limit()
    spec = hr.ContainerSpec(image=image, limits=hr.Limits(pids=None if name == "fake" else 64))
    opened = Runtime(FakeDriver()) if name == "fake" else hr.open_runtime(name)
    with opened, ThreadPoolExecutor(8) as starters:
        def use(container):
            assert container.exec(["cat"], input=b"x").stdout == b"x"
            return container.exec(["sh", "-c", "ulimit -Sn"]).stdout.decode().strip()
        for first in list(starters.map(lambda _: opened.container(spec), range(8))):  # clients keep connections
            use(first)
            first.close()
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        started = list(starters.map(lambda _: opened.container(spec), range(count)))
        limits = {use(container) for container in started}
        held = len(os.listdir("/proc/self/fd")) - files
        own = sum(thread.name.startswith("hyperruntime") for thread in threading.enumerate())
        print(held, own, *limits)
    names = [container.name for container in started]
    with Runtime(FakeDriver()) if name == "fake" else hr.open_runtime(name) as again:
        assert not {owned.record.id for owned in again.containers()} & set(names)
    assert not any(container.is_alive for container in started)
    """
)


def crowd(
    name: str, image: str, count: int, *, soft: int = 0, hard: str = "", raised: bool = True
) -> ProcessResult:
    """Run the crowd in a process of its own, with a limit on open files."""
    limit = [f"--nofile={soft}:{hard}"] if soft else []
    program = [sys.executable, "-c", CROWD, name, image, str(count), "raised" if raised else ""]
    return run_process(["prlimit", *limit, *program] if soft else program, timeout_s=280)


def test_an_idle_container_holds_three_descriptors_and_no_thread(
    runtime_name: str, base_image: str
) -> None:
    done = crowd(runtime_name, base_image, 4)
    assert done.exit_code == 0, done.stderr
    held, threads = map(int, done.stdout.split()[:2])
    assert held <= 3 * 4
    assert threads == 1


def test_many_containers_fit_under_a_low_soft_limit_that_their_commands_keep() -> None:
    done = crowd("fake", IMAGE, 30, soft=64)
    assert done.exit_code == 0, done.stderr
    held, threads, *limits = done.stdout.decode().split()
    assert int(held) <= 3 * 30
    assert (threads, limits) == ("1", ["64"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_containers_fit_under_the_usual_soft_limit(
    runtime_name: str, base_image: str
) -> None:
    # Each of rootless Podman's takes a kernel key, and the tests beside this one need some.
    keys = int(Path("/proc/sys/kernel/keys/maxkeys").read_text())
    count = min(200, keys - 60) if runtime_name == "podman" and os.geteuid() != 0 else 200
    done = crowd(runtime_name, base_image, count, soft=1024)
    assert done.exit_code == 0, done.stderr
    assert int(done.stdout.split()[0]) <= 3 * count


def test_a_hard_limit_that_is_too_low_is_named() -> None:
    done = crowd("fake", IMAGE, 30, soft=64, hard="64")
    assert done.exit_code != 0
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith(
        "hyperruntime.errors.StorageError: this process has no file descriptor left"
    )
    assert "raise_file_limit" in last


@pytest.mark.slow
def test_the_limit_of_commands_is_the_same_after_it_was_raised_here(
    runtime_name: str, base_image: str
) -> None:
    seen = [crowd(runtime_name, base_image, 1, soft=512, raised=raised) for raised in (False, True)]
    assert [done.exit_code for done in seen] == [0, 0], seen[-1].stderr
    assert seen[0].stdout.split()[2:] == seen[1].stdout.split()[2:]


async def test_a_container_has_async_twins_of_all_that_blocks(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"data")

    async with await runtime.acontainer(hr.ContainerSpec(image=base_image)) as container:
        await container.aput(tmp_path / "a", "/tmp/b")
        assert (await container.aexec(["cat", "/tmp/b"])).stdout == b"data"
        await container.aget("/tmp/b", tmp_path / "c")
    assert not container.is_alive
    await container.aclose()
    assert (tmp_path / "c").read_bytes() == b"data"


class HeldDriver(FakeDriver):
    """Starts containers only when the test allows it."""

    def __init__(self) -> None:
        self.begun, self.allowed = threading.Event(), threading.Event()
        self.made: list[FakeLiveContainer] = []

    def launch(self, launch: Launch) -> FakeLiveContainer:
        self.begun.set()
        assert self.allowed.wait(60)
        self.made.append(super().launch(launch))
        return self.made[-1]


@pytest.fixture
def held() -> Iterator[HeldDriver]:
    driver = HeldDriver()
    driver.probe()
    yield driver
    driver.allowed.set()


def test_a_container_that_starts_while_its_runtime_closes_is_ended(held: HeldDriver) -> None:
    opened, errors = Runtime(held), list[Exception]()
    private = opened._owner.private_dir

    def start() -> None:
        try:
            opened.container(FAKE)
        except EngineError as error:
            errors.append(error)

    starting, closing = threading.Thread(target=start), threading.Thread(target=opened.close)
    starting.start()
    assert held.begun.wait(60)
    closing.start()
    while not opened._closed:
        pass
    held.allowed.set()
    starting.join(60)
    closing.join(60)
    assert [str(error) for error in errors] == ["the runtime is closed; open another one"]
    assert [live.shell.wait(120) is not None for live in held.made] == [True]
    assert not os.path.exists(private)


def test_a_cancelled_start_leaves_no_container(held: HeldDriver) -> None:
    async def main(opened: Runtime) -> None:
        task = asyncio.ensure_future(opened.acontainer(FAKE))
        while not held.begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.allowed.set()
        while not held.made:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(held.made[0].shell.wait, 30) is not None

    with Runtime(held) as opened:
        asyncio.run(main(opened))


class FullDriver(FakeDriver):
    """Has no process left for the first starts."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def launch(self, launch: Launch) -> FakeLiveContainer:
        self.failures -= 1
        if self.failures >= 0:
            raise ProcessLimitError("fake", "this user has reached the limit on processes")
        return super().launch(launch)


def test_a_container_waits_a_moment_for_a_process() -> None:
    with Runtime(FullDriver(2)) as opened, opened.container(FAKE) as container:
        assert container.exec(["echo", "on"]).stdout == b"on\n"
    with (
        Runtime(FullDriver(1000)) as opened,
        pytest.raises(ProcessLimitError, match="limit on processes"),
    ):
        opened.container(FAKE)
