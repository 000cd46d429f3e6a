"""Nothing outlives its owner, and nobody's cleaning touches what belongs to somebody else."""

from __future__ import annotations

import glob
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import HostProcess, run_process, spawn, wait_until

pytestmark = pytest.mark.engine

Owners = Callable[..., tuple[HostProcess, list[str]]]
Leftovers = Callable[[Iterable[str]], list[str]]

MARK = f".{os.getpid()}"  # of sleeps that no other test run on this machine has
OWNER = textwrap.dedent(
    f"""
    import sys, threading, time
    import hyperruntime as hr
    name, count, image = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    runtime = hr.open_runtime(name, run_id="owner-test")
    containers = [runtime.container(hr.ContainerSpec(image=image)) for _ in range(count)]
    for container in containers:
        for args in (["sleep", "921{MARK}"], ["sh", "-c", "trap '' TERM; setsid sleep 922{MARK} & sleep 923{MARK}"]):
            threading.Thread(target=container.exec, args=(args,), daemon=True).start()
    if len(sys.argv) > 4:
        stop = ["sh", "-c", "kill -STOP -1; sleep 600"]
        threading.Thread(target=containers[0].exec, args=(stop,), daemon=True).start()
        time.sleep(1)
    print("\\n".join(c.name for c in containers), flush=True)
    time.sleep(600)
    """
)


def read_names(process: HostProcess, count: int) -> list[str]:
    assert process.stdout is not None
    lines = b""
    while lines.count(b"\n") < count:
        chunk = process.stdout.read(4096)
        assert chunk, "the owner ended early"
        lines += chunk
    return lines.decode().split()


@pytest.fixture
def owner(runtime_name: str) -> Iterator[Callable[..., tuple[HostProcess, list[str]]]]:
    """Start owners in processes of their own; whatever a test does, they end."""
    started: list[HostProcess] = []

    def start(image: str, count: int, *extra: str) -> tuple[HostProcess, list[str]]:
        process = spawn([sys.executable, "-c", OWNER, runtime_name, str(count), image, *extra])
        started.append(process)
        return process, read_names(process, count)

    yield start
    for process in started:
        end(process)


def end(process: HostProcess) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture
def leftovers(engine_command: Any) -> Leftovers:
    """Tell which of some containers the engine still lists."""

    def listed(names: Iterable[str]) -> list[str]:
        return [name for name in engine_command.containers(f"label={LABEL}") if name in names]

    return listed


@pytest.mark.slow
def test_twenty_containers_are_gone_after_their_owner_was_killed(
    owner: Owners, leftovers: Leftovers, base_image: str
) -> None:
    process, names = owner(base_image, 20)
    assert len(leftovers(names)) == 20
    directories = glob.glob(f"{tempfile.gettempdir()}/hyperruntime-{os.getuid()}-*/{names[0]}")
    assert directories
    end(process)
    assert wait_until(lambda: not leftovers(names), 60, 0.3), leftovers(names)
    assert wait_until(lambda: not os.path.exists(directories[0]), 60)

    def left() -> list[str]:
        listed = run_process(["ps", "-axo", "args="]).stdout.decode(errors="replace")
        return [line for line in listed.splitlines() if "sleep 92" in line and line.endswith(MARK)]

    assert wait_until(lambda: not left(), 60), left()


def test_even_a_container_whose_processes_were_all_stopped_goes(
    owner: Owners, leftovers: Leftovers, busybox_image: str
) -> None:
    process, names = owner(busybox_image, 1, "stop")
    end(process)
    assert wait_until(lambda: not leftovers(names), 60, 0.3), leftovers(names)


def test_a_terminated_owner_leaves_nothing(owner: Owners, leftovers: Leftovers, busybox_image: str) -> None:
    process, names = owner(busybox_image, 2)
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert wait_until(lambda: not leftovers(names), 60, 0.3)


def test_the_owners_forked_children_do_not_keep_its_containers(
    runtime_name: str, leftovers: Leftovers, busybox_image: str
) -> None:
    script = textwrap.dedent(
        """
        import os, sys, time
        import hyperruntime as hr
        runtime = hr.open_runtime(sys.argv[1])
        container = runtime.container(hr.ContainerSpec(image=sys.argv[2]))
        container.exec(["true"])
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
        print(container.name, flush=True)
        time.sleep(600)
        """
    )
    process = spawn([sys.executable, "-W", "ignore", "-c", script, runtime_name, busybox_image])
    assert process.stdout is not None
    name = process.stdout.read(4096).decode().strip()
    process.kill()
    assert wait_until(lambda: not leftovers([name]), 60, 0.3)
    end(process)


def test_ps_knows_the_owner_and_prune_leaves_the_living_alone(
    owner: Owners, runtime: hr.Runtime, leftovers: Leftovers, busybox_image: str
) -> None:
    process, names = owner(busybox_image, 1)
    listed = {c.record.id: c for c in runtime.containers()}
    assert listed[names[0]].owner.pid == process.pid
    assert listed[names[0]].owner_state == "alive"
    assert listed[names[0]].record.labels[f"{LABEL}.run"] == "owner-test"
    assert names[0] not in runtime.prune()
    assert leftovers(names)


def test_prune_removes_what_dead_owners_left_and_nothing_else(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    us = OwnerIdentity.current()
    gone = {
        "its pid is nobody's": attrs.evolve(us, pid=2**22 + 1),
        "its pid is used again": attrs.evolve(us, start_ticks=us.start_ticks - 1),
        "before the last boot": attrs.evolve(us, boot_id="another boot"),
    }
    there = {
        "alive": us,
        "on another machine": attrs.evolve(us, boot_id="another boot", host="another", pid=2**22 + 1),
        "in another pid namespace": attrs.evolve(us, pid_namespace=1, pid=2**22 + 1),
    }
    dead = {run_labelled(busybox_image, identity.to_labels()) for identity in gone.values()}
    kept = {run_labelled(busybox_image, identity.to_labels()) for identity in there.values()}
    old = {LABEL: "x", f"{LABEL}.host": us.host, f"{LABEL}.pid": "4194303", f"{LABEL}.start": "1.0"}
    kept |= {run_labelled(busybox_image, labels) for labels in (old, {}, {"io.hyperruntime.run": "x"})}
    listed = {owned.record.id: owned.owner_state for owned in runtime.containers()}
    assert {listed[name] for name in dead} == {"dead"}
    removed = runtime.prune()
    assert dead <= set(removed)
    assert not kept & set(removed)
    left = set(engine_command.containers())
    assert not dead & left
    assert kept <= left


def test_a_forked_child_ends_nothing_of_its_parents(runtime_name: str, busybox_image: str) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        import hyperruntime as hr
        name, spec = sys.argv[1], hr.ContainerSpec(image=sys.argv[2])
        with hr.open_runtime(name) as runtime, runtime.container(spec) as container:
            runtime.images.list()
            if os.fork() == 0:
                try:
                    runtime.container(spec)
                except hr.HyperRuntimeError as error:
                    print(error, flush=True)
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
    done = run_process([sys.executable, "-W", "ignore", "-c", script, runtime_name, busybox_image], timeout_s=60)
    lines = done.stdout.decode().splitlines()
    assert done.exit_code == 0, done.stderr
    assert "belongs to the parent of this process" in lines[0]
    assert lines[1:] == ["child", "0", "parent", "True True"]


ODD_NAMES = {
    "url": "a#b?c%41&d",
    "colons": "a:b,c;d",
    "quotes": 'it\'s a "b" \\ c',
    "unicode": "é 日本",
    "newline": "a\nb",
    "long": "/".join(["x" * 50] * 5),
}
USE = textwrap.dedent(
    """
    import sys
    import hyperruntime as hr
    with hr.open_runtime(sys.argv[1]) as runtime:
        assert sys.argv[2] in [name for image in runtime.images.list() for name in image.references]
        with runtime.container(hr.ContainerSpec(image=sys.argv[2])) as container:
            assert container.exec(["echo", "works"]).stdout == b"works\\n"
            assert container.name in [owned.record.id for owned in runtime.containers()]
    """
)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_temporary_directory_may_have_any_name(
    runtime_name: str, busybox_image: str, tmp_path: Path, name: str, locale: str
) -> None:
    temporary = tmp_path / ODD_NAMES[name]
    temporary.mkdir(parents=True)
    cache = tmp_path / ODD_NAMES[name] / "cache"
    env = {**os.environ, "TMPDIR": str(temporary), "LC_ALL": locale, "XDG_CACHE_HOME": str(cache)}
    done = run_process([sys.executable, "-c", USE, runtime_name, busybox_image], env=env, timeout_s=120)
    assert done.exit_code == 0, done.stderr.decode()
    assert [path.name for path in temporary.iterdir()] == ["cache"]


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
