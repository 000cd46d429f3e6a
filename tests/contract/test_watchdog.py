"""Limits that the library enforces from outside: memory if the engine cannot, and always disk and
wall clock.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.driver import EngineInfo, PostMortem
from hyperruntime.errors import ContainerLostError, UnsupportedOptionError
from hyperruntime.host.process import wait_until
from hyperruntime.runtime import Runtime
from hyperruntime.units import MIB
from hyperruntime_podman import PodmanDriver

pytestmark = pytest.mark.engine

LIMIT = 96 * MIB
TAKE = (
    "import sys, time; x = bytearray(int(sys.argv[1]) << 20); print(len(x), flush=True); "
    "time.sleep(300)"
)


class WeakDriver(PodmanDriver):
    """Podman that declares that it cannot limit memory, like rootless Podman on cgroup v1."""

    def probe(self) -> EngineInfo:
        info = super().probe()
        return attrs.evolve(info, limits={**info.limits, "memory_bytes": "no"})


@pytest.fixture(scope="module")
def weak() -> Iterator[Runtime]:
    with Runtime(WeakDriver()) as opened:
        opened.images.ensure("base")  # the engine under test may be another one
        yield opened


def watched(image: str, **limits: Any) -> hr.ContainerSpec:
    return hr.ContainerSpec(image=image, limits_mode="watchdog", limits=hr.Limits(**limits))


def lost(container: hr.Container, *args: str) -> ContainerLostError:
    begin = time.monotonic()
    with pytest.raises(ContainerLostError) as caught:
        container.exec(args)
    assert time.monotonic() - begin < 60
    return caught.value


def no_watchdog() -> bool:
    return all(thread.name != "hyperruntime-watchdog" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "script",
    [
        f"exec python3 -c '{TAKE}' 200",
        # each process is below the limit, but not all three together
        f"for i in 1 2 3; do python3 -c '{TAKE}' 50 & done; wait",
        f"setsid python3 -c '{TAKE}' 200 >/dev/null 2>&1 & sleep 300",
        "head -c 60M /dev/zero >/dev/shm/file; exec python3 -c '" + TAKE + "' 60",
    ],
    ids=["one process", "three processes", "a daemon", "a memory file system"],
)
def test_a_container_above_its_memory_limit_is_ended_and_the_error_names_the_watchdog(
    weak: Runtime, base_image: str, script: str
) -> None:
    with weak.container(watched(base_image, memory_bytes=LIMIT)) as container:
        error = lost(container, "sh", "-c", script)
        assert f"limits.memory_bytes={LIMIT}" in str(error)
        assert isinstance(error.post_mortem, PostMortem)
        assert "watchdog ended it, because it used" in error.post_mortem.ended_by
        used = int(error.post_mortem.ended_by.split(" bytes")[0].split()[-1])
        assert used > LIMIT
        assert "watchdog" in str(lost(container, "true"))


def test_a_container_below_its_memory_limit_stays_alive_and_shared_pages_count_once(
    weak: Runtime, base_image: str
) -> None:
    forks = (
        "import os, time\nx = bytearray(50 << 20)\nfor _ in range(4): os.fork() or "
        "(time.sleep(1), os._exit(0))\n"
    )
    with weak.container(watched(base_image, memory_bytes=LIMIT)) as container:
        container.exec(["python3", "-c", forks + "time.sleep(1.5)"]).check()
        assert container.exec(["python3", "-c", "print(len(bytearray(20 << 20)))"]).exit_code == 0
    assert wait_until(no_watchdog, 60)


def test_only_the_container_above_its_limit_is_ended(weak: Runtime, base_image: str) -> None:
    spec = watched(base_image, memory_bytes=LIMIT)
    with (
        weak.container(spec) as good,
        weak.container(spec) as bad,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(good.exec, ["sh", "-c", "sleep 2; echo done"])
        lost(bad, "python3", "-c", TAKE, "200")
        assert running.result().stdout == b"done\n"
        assert [thread.name for thread in threading.enumerate()].count("hyperruntime-watchdog") == 1


def test_an_unsupported_memory_limit_is_refused_unless_the_watchdog_is_requested(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(memory_bytes=LIMIT))
    if runtime.info.limits["memory_bytes"] == "no":
        with pytest.raises(
            UnsupportedOptionError, match=r"limits\.memory_bytes.*limits_mode='watchdog'"
        ):
            runtime.container(spec)
    with runtime.container(attrs.evolve(spec, limits_mode="watchdog")) as container:
        container.exec(["true"]).check()
        if runtime.info.limits["memory_bytes"] == "no":
            assert "watchdog" in str(lost(container, "python3", "-c", TAKE, "200"))
        else:
            assert no_watchdog(), "the engine enforces the limit, so no watchdog is needed"
            assert container.exec(["python3", "-c", TAKE, "200"]).exit_code == 137


def test_a_command_above_the_memory_limit_is_killed_and_the_post_mortem_reports_it(
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


def test_a_container_below_its_disk_limit_stays_alive(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """What others write to the same disk meanwhile is not the container's."""
    mine = tmp_path / "mine"
    mine.mkdir()
    script = (
        "for _ in 1 2 3 4; do head -c 40M /dev/zero >/data/file; rm /data/file; done; truncate "
        "-s 1T /data/sparse"
    )
    mount = hr.Mount(source=str(mine), target="/data", read_only=False)
    spec = hr.ContainerSpec(
        image=base_image, mounts=(mount,), limits=hr.Limits(disk_bytes=64 * MIB)
    )
    with runtime.container(spec) as container:
        (tmp_path / "others").write_bytes(bytes(100 * MIB))
        container.exec(["sh", "-c", f"{script}; sleep 1.5"]).check()
        assert os.stat(mine / "sparse").st_size == 1 << 40
    assert wait_until(
        lambda: all(thread.name != "hyperruntime-disk" for thread in threading.enumerate()), 60
    )


def test_a_deleted_file_counts_where_a_container_writes_to_memory_over_an_image_on_disk(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a site whose temporary files are in memory; such a file has a device of its own."""
    script = "exec 3>/file; rm /file; head -c 100M /dev/zero >&3; sleep 60"
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(disk_bytes=64 * MIB))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        monkeypatch.setenv("HYPERRUNTIME_SCRATCH", place)
        with hr.open_runtime(runtime_name) as opened, opened.container(spec) as container:
            error = lost(container, "sh", "-c", script)
    assert isinstance(error.post_mortem, PostMortem)
    assert error.post_mortem.limit == "disk_bytes"


def test_the_watchdog_does_not_replace_other_limits(weak: Runtime, base_image: str) -> None:
    if weak.info.limits["cpus"] != "no":
        with weak.container(watched(base_image, cpus=0.5)) as container:
            container.exec(["true"]).check()
        return
    with pytest.raises(UnsupportedOptionError, match=r"limits\.cpus"):
        weak.container(watched(base_image, cpus=0.5))


def test_the_watchdog_ends_when_its_containers_are_closed(
    runtime: hr.Runtime, base_image: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with runtime.container(
            hr.ContainerSpec(image=base_image, limits=hr.Limits(wall_s=60))
        ) as container:
            container.exec(["true"]).check()
            assert not no_watchdog()
    assert wait_until(no_watchdog, 60)
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 60)
