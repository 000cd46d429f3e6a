"""Nothing outlives its owner, and nobody's cleaning touches what belongs to somebody else."""

from __future__ import annotations

import glob
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator

import pytest

import hyperruntime as hr
from hyperruntime.owner import LABEL
from hyperruntime.process import HostProcess, run_process, spawn, wait_until

pytestmark = pytest.mark.engine

Owners = Callable[..., tuple[HostProcess, list[str]]]

OWNER = textwrap.dedent(
    """
    import sys, threading, time
    import hyperruntime as hr
    count, image = int(sys.argv[1]), sys.argv[2]
    runtime = hr.open_runtime("podman", run_id="owner-test")
    containers = [runtime.container(hr.ContainerSpec(image=image)) for _ in range(count)]
    for container in containers:
        for args in (["sleep", "921"], ["sh", "-c", "trap '' TERM; setsid sleep 922 & sleep 923"]):
            threading.Thread(target=container.exec, args=(args,), daemon=True).start()
    if len(sys.argv) > 3:
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
def owner() -> Iterator[Callable[..., tuple[HostProcess, list[str]]]]:
    """Start owners in processes of their own; whatever a test does, they end."""
    started: list[HostProcess] = []

    def start(image: str, count: int, *extra: str) -> tuple[HostProcess, list[str]]:
        process = spawn([sys.executable, "-c", OWNER, str(count), image, *extra])
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


def podman_names() -> list[str]:
    listed = run_process(["podman", "ps", "--all", "--format", "{{.Names}}", "--filter", f"label={LABEL}"])
    return listed.stdout.decode().split()


def leftovers(names: list[str]) -> list[str]:
    return [name for name in podman_names() if name in names]


@pytest.mark.slow
def test_twenty_containers_are_gone_ten_seconds_after_their_owner_was_killed(owner: Owners, base_image: str) -> None:
    process, names = owner(base_image, 20)
    assert len(leftovers(names)) == 20
    directories = glob.glob(f"{tempfile.gettempdir()}/hyperruntime-{os.getuid()}-*/{names[0]}")
    assert directories
    end(process)
    assert wait_until(lambda: not leftovers(names), 10, 0.3), leftovers(names)
    assert wait_until(lambda: not os.path.exists(directories[0]), 10)
    assert b"sleep 92" not in run_process(["ps", "-axo", "args="]).stdout


def test_even_a_container_whose_processes_were_all_stopped_goes(owner: Owners, busybox_image: str) -> None:
    process, names = owner(busybox_image, 1, "stop")
    end(process)
    assert wait_until(lambda: not leftovers(names), 10, 0.3), leftovers(names)


def test_a_terminated_owner_leaves_nothing(owner: Owners, busybox_image: str) -> None:
    process, names = owner(busybox_image, 2)
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert wait_until(lambda: not leftovers(names), 10, 0.3)


def test_the_owners_forked_children_do_not_keep_its_containers(busybox_image: str) -> None:
    script = textwrap.dedent(
        """
        import os, sys, time
        import hyperruntime as hr
        runtime = hr.open_runtime("podman")
        container = runtime.container(hr.ContainerSpec(image=sys.argv[1]))
        container.exec(["true"])
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        print(container.name, flush=True)
        time.sleep(600)
        """
    )
    process = spawn([sys.executable, "-W", "ignore", "-c", script, busybox_image])
    assert process.stdout is not None
    name = process.stdout.read(4096).decode().strip()
    process.kill()
    assert wait_until(lambda: not leftovers([name]), 10, 0.3)
    end(process)


def test_ps_knows_the_owner_and_prune_leaves_the_living_alone(
    owner: Owners, runtime: hr.Runtime, busybox_image: str
) -> None:
    process, names = owner(busybox_image, 1)
    listed = {c.record.id: c for c in runtime.containers()}
    assert listed[names[0]].owner.pid == process.pid
    assert listed[names[0]].owner_state == "alive"
    assert listed[names[0]].record.labels[f"{LABEL}.run"] == "owner-test"
    assert names[0] not in runtime.prune()
    assert leftovers(names)


def test_prune_removes_what_a_dead_owner_left_and_nothing_else(runtime: hr.Runtime, busybox_image: str) -> None:
    def run(name: str, *labels: str) -> None:
        words = [word for label in labels for word in ("--label", label)]
        settings = runtime._driver._settings()  # type: ignore[attr-defined]
        from hyperruntime_podman.args import base_args

        args = [*base_args(settings), "run", "--detach", "--rm", "--network", "none", "--name", name, *words]
        if settings.nofile:
            limits = [f"nofile={settings.nofile}:{settings.nofile}", f"nproc={settings.nproc}:{settings.nproc}"]
            args += ["--ulimit", limits[0], "--ulimit", limits[1]]
        result = run_process([*args, busybox_image, "sleep", "300"])
        assert result.exit_code == 0, result.stderr

    host = os.uname().nodename
    dead = [f"{LABEL}=x", f"{LABEL}.host={host}", f"{LABEL}.pid=4194303", f"{LABEL}.start=1.0"]
    elsewhere = [f"{LABEL}=y", f"{LABEL}.host=another", f"{LABEL}.pid=1", f"{LABEL}.start=1.0"]
    names = [f"hyperruntime-test-{os.getpid()}-{kind}" for kind in ("dead", "elsewhere", "foreign")]
    try:
        run(names[0], *dead)
        run(names[1], *elsewhere)
        run(names[2])
        assert names[0] in runtime.prune()
        listed = run_process(["podman", "ps", "--format", "{{.Names}}"]).stdout.decode().split()
        assert names[0] not in listed
        assert names[1] in listed
        assert names[2] in listed
    finally:
        run_process(["podman", "rm", "--force", "--ignore", "--time", "0", *names])


def test_a_closed_runtime_leaves_no_guard_no_service_and_no_files(busybox_image: str) -> None:
    with hr.open_runtime("podman") as opened:
        private = opened._owner.private_dir
        opened.images.list()
        guard = opened._owner._guard.pid
        with opened.container(hr.ContainerSpec(image=busybox_image)) as started:
            name = started.name
    assert not os.path.exists(private)
    assert not os.path.exists(f"/proc/{guard}")
    assert not leftovers([name])
    assert private.encode() not in run_process(["ps", "-axo", "args="]).stdout
