"""Owners beyond the conformance suite: dead owners, forked children, and closed runtimes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import ContainerStateError, EngineError
from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import run_process, wait_until
from hyperruntime.host.process_tree import find_namespace
from tests.conftest import SHELLS

pytestmark = pytest.mark.engine

Leftovers = Callable[[Iterable[str]], list[str]]


@pytest.fixture
def leftovers(engine_command: Any) -> Leftovers:
    """Return a function that returns those of the given containers that the engine still lists."""

    def listed(names: Iterable[str]) -> list[str]:
        return [name for name in engine_command.containers(f"label={LABEL}") if name in names]

    return listed


def test_prune_removes_only_containers_of_dead_owners(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    """Which owners count as dead is in tests/unit/host/test_owner.py."""
    us = OwnerIdentity.current()
    dead = {run_labelled(busybox_image, attrs.evolve(us, pid=2**22 + 1).to_labels())}
    old = {LABEL: "x", f"{LABEL}.host": us.host, f"{LABEL}.pid": "4194303", f"{LABEL}.start": "1.0"}
    others: list[dict[str, str]] = [us.to_labels(), old, {}, {"io.hyperruntime.run": "x"}]
    kept = {run_labelled(busybox_image, labels) for labels in others}
    listed = {owned.record.id: owned.owner_state for owned in runtime.containers()}
    assert {listed[name] for name in dead} == {"dead"}
    removed = runtime.prune()
    assert dead <= set(removed)
    assert not kept & set(removed)
    left = set(engine_command.containers())
    assert not dead & left
    assert kept <= left


def test_a_forked_child_does_not_end_containers_of_its_parent(
    runtime_name: str, busybox_image: str
) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        import hyperruntime as hr
        from hyperruntime.errors import ContainerStateError
        name, spec = sys.argv[1], hr.ContainerSpec(image=sys.argv[2])
        with hr.open_runtime(name) as runtime, runtime.container(spec) as container:
            runtime.images.list()
            if os.fork() == 0:
                try:
                    runtime.container(spec)
                except hr.HyperRuntimeError as error:
                    print(error, flush=True)
                try:
                    container.exec(["true"])
                except ContainerStateError:
                    print("refused", flush=True)
                container.close()
                runtime.close()
                runtime._driver.close()
                runtime._owner.close()
                with hr.open_runtime(name) as own, own.container(spec) as another:
                    print(another.exec(["echo", "child"]).stdout.decode(), end="", flush=True)
                os._exit(0)
            print(os.wait()[1], flush=True)
            print(container.exec(["echo", "parent"]).stdout.decode(), end="", flush=True)
            print(len(runtime.images.list()) > 0, os.path.isdir(runtime._owner.private_dir), flush=True)
            assert runtime._owner._guard.poll() is None
        """
    )
    done = run_process(
        [sys.executable, "-W", "ignore", "-c", script, runtime_name, busybox_image], timeout_s=60
    )
    lines = done.stdout.decode().splitlines()
    assert done.exit_code == 0, done.stderr
    assert "belongs to the parent of this process" in lines[0]
    assert lines[1:] == ["refused", "child", "0", "parent", "True True"]


def test_a_closed_runtime_leaves_no_guard_no_service_and_no_files(
    runtime_name: str, leftovers: Leftovers, busybox_image: str
) -> None:
    with hr.open_runtime(runtime_name) as opened:
        private = opened._owner.private_dir
        opened.images.list()
        guard = opened._owner._guard.pid
        with opened.container(hr.ContainerSpec(image=busybox_image)) as started:
            name = started.name
    assert not os.path.exists(private)
    assert not os.path.exists(f"/proc/{guard}")
    assert not leftovers([name])
    assert private.encode() not in run_process(["ps", "-axo", "args="]).stdout


def test_a_closed_runtime_has_ended_its_containers_and_says_that_it_is_closed(
    runtime_name: str, base_image: str, leftovers: Leftovers
) -> None:
    spec = hr.ContainerSpec(image=base_image)
    opened = hr.open_runtime(runtime_name)
    started = [opened.container(spec) for _ in range(2)]
    for container in started:
        container.exec(["sh", "-c", "sleep 300 >/dev/null 2>&1 &"]).check()
    opened.close()
    opened.close()
    assert not leftovers([container.name for container in started])
    with pytest.raises(ContainerStateError, match="is closed"):
        started[0].exec(["true"])
    calls: list[Callable[[], object]] = [
        lambda: opened.container(spec), opened.containers, opened.prune, lambda: opened.images,
        lambda: asyncio.run(opened.acontainer(spec)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(EngineError, match="the runtime is closed; open another one"):
            call()


@pytest.mark.parametrize("user", [None, "65534"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_container_ends_by_itself_if_its_owner_dies_while_it_starts_a_shell(
    runtime: hr.Runtime, images: dict[str, str], shell: str, user: str | None
) -> None:
    """Nobody reads the FIFO that the new shell opens, and no guard helps."""
    if user is not None and not (runtime.info.users and "user" not in runtime.info.refuses):
        return
    script = textwrap.dedent(
        """
        import json, os, sys
        import hyperruntime as hr
        from hyperruntime.exec.lane import Lane
        name, image, user = sys.argv[1:]
        with hr.open_runtime(name) as runtime:
            pids = None if runtime.info.limits["pids"] == "no" else 1000
            spec = hr.ContainerSpec(image=image, user=user or None, limits=hr.Limits(pids=pids))
            container = runtime.container(spec)
            container.exec(["true"]).check()
            session = container._sessions.find(None)
            lane = session.lanes.make(Lane, None)
            print(json.dumps([container.name, runtime._owner.private_dir]), flush=True)
            os.kill(runtime._owner._guard.pid, 9)
            os.close(lane.status)
            os.close(lane.go)
            session._request_lane(lane)
            os.kill(os.getpid(), 9)
        """
    )
    args = [sys.executable, "-W", "ignore", "-c", script, runtime.name, images[shell], user or ""]
    killed = run_process(args, timeout_s=120)
    assert killed.exit_code == -9, killed.stderr
    name, private = json.loads(killed.stdout)
    try:
        assert wait_until(lambda: find_namespace(f"{name}/x") is None, 60.0, 0.1)
        assert wait_until(
            lambda: name not in [one.record.id for one in runtime.containers()], 60.0, 0.1
        )
    finally:
        runtime._driver.remove_container(name)
        shutil.rmtree(private)


@pytest.mark.slow
def test_prune_and_the_guard_remove_the_volumes_of_removed_containers_and_no_others(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    if runtime.name not in ("podman", "docker"):
        return  # its containers have no volumes
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1)
    guarded = attrs.evolve(dead, token="guarded", pid=os.getpid())
    kept = run_labelled(busybox_image, {}, "--volume", "/data")
    names = [
        run_labelled(busybox_image, owner.to_labels(), "--volume", "/data")
        for owner in (dead, guarded)
    ]
    volumes = engine_command.volumes(*names)
    assert len(volumes) == 2
    runtime.prune()
    run_process(runtime._driver.cleanup_args(f"{LABEL}=guarded"))
    assert not set(names) & set(engine_command.containers())
    left = engine_command.all_volumes()
    assert not volumes & left
    assert engine_command.volumes(kept) <= left
