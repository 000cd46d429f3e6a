"""A Podman that removes containers slowly, or not at all, fails no caller, and leaves nothing in
the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

import hyperruntime as hr
from hyperruntime.adapters.tool_backend import SlotToolBackend
from hyperruntime.cli import main
from hyperruntime.host import engine_limits
from hyperruntime.host.process import pid_namespace, process_start_ticks, wait_until
from tests.doubles.slow_podman import SlowPodman

pytestmark = pytest.mark.engine

_GONE_S = 120.0
_BUSY = {"rm": "removing container: device or resource is locked"}


def shorten_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limits short after which a removal goes on in the background."""
    short = {"end": 0.2, "close": 1.0}
    limits = {
        verb: attrs.evolve(limit, base_s=short[verb], most_s=short[verb])
        if verb in short
        else limit
        for verb, limit in engine_limits.LIMITS.items()
    }
    monkeypatch.setattr(engine_limits, "LIMITS", limits)
    monkeypatch.setattr("hyperruntime.host.removals.LIMITS", limits)


@pytest.fixture
def slow_podman(tmp_path: Path, base_image: str, monkeypatch: pytest.MonkeyPatch) -> SlowPodman:
    """Put a slow ``podman`` on PATH, and make the limits short."""
    program = SlowPodman(tmp_path / "slow")
    shorten_limits(monkeypatch)
    monkeypatch.setenv("PATH", program.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program


@pytest.fixture
def slow_runtime(slow_podman: SlowPodman) -> Iterator[hr.Runtime]:
    """Yield a runtime of the slow engine."""
    with hr.open_runtime("podman") as opened:
        yield opened


def start(runtime: hr.Runtime) -> hr.Container:
    return runtime.container(hr.ContainerSpec(image="localhost/hyperruntime/base:latest"))


def members_of(first: int) -> list[int]:
    """Return the pids of the processes in the pid namespace of a process."""
    inode = pid_namespace(first)
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and pid_namespace(name) == inode
    ]


def events(logs: Any, event: str) -> list[str]:
    return [entry["container"] for entry in logs if entry["event"] == event]


def test_a_late_removal_is_logged_once_and_goes_on_in_the_background(
    slow_podman: SlowPodman, slow_runtime: hr.Runtime, engine_command: Any
) -> None:
    container = start(slow_runtime)
    slow_podman.change(before={"rm": (5, 5)}, after={"run": (20, 20)})
    late = start(slow_runtime)
    with capture_logs() as logs:
        late.close()
        late.close()
        assert slow_runtime.left_containers == (late.name,)
        assert wait_until(lambda: not slow_runtime.left_containers, _GONE_S)
    assert events(logs, "container not removed in time") == [late.name]
    assert slow_runtime.late_removals == 1
    assert late.name not in engine_command.containers()
    container.close()


def test_what_fails_to_go_is_tried_again_and_left_to_the_guard_at_the_end(
    slow_podman: SlowPodman, engine_command: Any
) -> None:
    with hr.open_runtime("podman") as runtime:
        slow_podman.change(after={"run": (20, 20)}, fails=_BUSY)
        container = start(runtime)
        container.close()
        private = Path(runtime._owner.private_dir)
    assert runtime.left_containers == (container.name,)
    assert slow_podman.count("rm") > 1
    slow_podman.change()
    assert wait_until(lambda: container.name not in engine_command.containers(), _GONE_S)
    assert wait_until(lambda: not private.exists(), _GONE_S)


def test_the_processes_of_a_container_that_cannot_be_removed_are_dead_when_close_returns(
    slow_podman: SlowPodman, slow_runtime: hr.Runtime, engine_command: Any
) -> None:
    container = start(slow_runtime)
    container.exec(["sh", "-c", "sleep 7531 >/dev/null 2>&1 &"]).check()
    first = engine_command.init_pid(container.name)
    inside = [(pid, process_start_ticks(pid)) for pid in members_of(first)]
    assert len(inside) > 2
    for pid, _ in inside:
        os.kill(pid, signal.SIGSTOP)  # so nothing in it sees the end of its input
    slow_podman.change(before={"rm": (30, 30)})
    container.close()
    assert slow_runtime.left_containers == (container.name,)
    assert wait_until(
        lambda: not any(process_start_ticks(pid) == ticks for pid, ticks in inside), _GONE_S
    )
    assert slow_runtime.left_containers == (container.name,)


def test_a_pool_and_a_tool_backend_stop_although_no_container_can_be_removed(
    slow_podman: SlowPodman, engine_command: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """A lost container, a recycled one and those at the end: none of the removals succeeds."""
    spec = hr.ContainerSpec(image="localhost/hyperruntime/base:latest")
    config = hr.PoolConfig(spec=spec, slots_per_container=1, reset="replace", max_containers=2)
    unhandled: list[dict[str, Any]] = []

    async def use() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unhandled.append(context)
        )
        backend = SlotToolBackend(config, runtime="podman", app_name="nothing-goes")
        await backend.start()
        names = []
        for number in range(3):
            slot = await backend.acquire(f"t{number}")
            names.append(slot.container_addr)
            if number == 0:
                slow_podman.change(after={"run": (20, 20)}, fails=_BUSY)
            await backend.release(slot, reset_workspace=True)
        await backend.stop()
        return names

    names = asyncio.run(use())
    assert len(set(names)) == 3
    assert unhandled == []
    slow_podman.change()
    found = "label=io.hyperruntime.owner.run=nothing-goes"
    assert wait_until(lambda: not engine_command.containers(found), _GONE_S)


def test_a_command_counts_the_containers_that_could_not_be_removed(
    slow_podman: SlowPodman, engine_command: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    slow_podman.change(after={"run": (1, 1)}, fails=_BUSY)
    before = set(engine_command.containers())
    assert main(["--runtime", "podman", "exec", "--", "echo", "works"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "works\n"
    left = "1 container was not removed in time; 1 left: it goes when the engine gets there"
    assert f"{left}, else with `hyperrun prune`" in shown.err
    slow_podman.change()
    assert wait_until(lambda: set(engine_command.containers()) <= before, _GONE_S)
