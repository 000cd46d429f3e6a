"""Nothing outlives its owner, and nobody's cleaning touches what belongs to somebody else."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.cli import main
from hyperruntime.errors import PruneError
from hyperruntime.owner import LABEL, OwnerIdentity
from hyperruntime.process import HostProcess, run_process, spawn, wait_until
from hyperruntime_podman.args import base_args
from hyperruntime_podman.driver import PodmanDriver

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


@pytest.fixture
def run_labelled(runtime: hr.Runtime) -> Iterator[Callable[..., str]]:
    """Start containers past the library, with an owner's labels; whatever a test does, they are removed."""
    names: list[str] = []
    driver = runtime._driver
    assert isinstance(driver, PodmanDriver)
    settings = driver._settings()

    def run(image: str, labels: Mapping[str, str], *options: str) -> str:
        name = f"hyperruntime-test-{os.getpid()}-{len(names)}"
        names.append(name)
        words = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        args = [*base_args(settings), "run", "--detach", "--network", "none", "--name", name, *words, *options]
        if settings.nofile:
            limits = [f"nofile={settings.nofile}:{settings.nofile}", f"nproc={settings.nproc}:{settings.nproc}"]
            args += ["--ulimit", limits[0], "--ulimit", limits[1]]
        result = run_process([*args, image, "sleep", "300"])
        assert result.exit_code == 0, result.stderr
        return name

    yield run
    run_process(["podman", "rm", "--force", "--ignore", "--volumes", "--time", "0", *names])


def running() -> list[str]:
    return run_process(["podman", "ps", "--format", "{{.Names}}"]).stdout.decode().split()


def test_prune_removes_what_dead_owners_left_and_nothing_else(
    runtime: hr.Runtime, busybox_image: str, run_labelled: Callable[..., str]
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
    assert not dead & set(running())
    assert kept <= set(running())


def test_prune_takes_the_volumes_of_what_it_removes(
    runtime: hr.Runtime, busybox_image: str, run_labelled: Callable[..., str]
) -> None:
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1)
    guarded = attrs.evolve(dead, token="guarded", pid=os.getpid())
    names = [run_labelled(busybox_image, owner.to_labels(), "--volume", "/data") for owner in (dead, guarded)]
    mounted = "{{range .Mounts}}{{.Name}} {{end}}"
    volumes = run_process(["podman", "inspect", "--format", mounted, *names]).stdout.decode().split()
    assert len(volumes) == 2
    runtime.prune()
    run_process(runtime._driver.cleanup_args(f"{LABEL}=guarded"))
    assert not set(names) & set(podman_names())
    left = run_process(["podman", "volume", "ls", "--quiet"]).stdout.decode().split()
    assert not set(volumes) & set(left)


def test_one_container_that_cannot_be_removed_does_not_save_the_others(
    runtime: hr.Runtime,
    busybox_image: str,
    run_labelled: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dead = attrs.evolve(OwnerIdentity.current(), pid=2**22 + 1).to_labels()
    names = [run_labelled(busybox_image, dead) for _ in range(3)]
    stubborn = next(owned.record.id for owned in runtime.containers() if owned.record.id in names)
    shim = tmp_path / "podman"
    shim.write_text(
        f'#!/bin/sh\ncase "$*" in rm*{stubborn}) echo "Error: device busy" >&2; exit 125;; esac\n'
        f'exec {shutil.which("podman")} "$@"\n'
    )
    shim.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(PruneError, match=f"{stubborn} could not be removed: .*device busy") as caught:
            runtime.prune()
        assert main(["--runtime", "podman", "prune"]) == 1
        assert f"{stubborn} could not be removed" in capsys.readouterr().err
    assert set(caught.value.removed) >= {name for name in names if name != stubborn}
    assert set(names) & set(running()) == {stubborn}
    assert stubborn in runtime.prune()


def test_a_forked_child_ends_nothing_of_its_parents(busybox_image: str) -> None:
    script = textwrap.dedent(
        """
        import os, sys
        import hyperruntime as hr
        with hr.open_runtime("podman") as runtime, runtime.container(hr.ContainerSpec(image=sys.argv[1])) as container:
            runtime.images.list()
            if os.fork() == 0:
                for use in (runtime.images.list, lambda: runtime.container(container.spec)):
                    try:
                        use()
                    except hr.HyperRuntimeError as error:
                        print(error, flush=True)
                runtime.close()
                runtime._driver.close()
                runtime._owner.close()
                with hr.open_runtime("podman") as own, own.container(container.spec) as another:
                    print(another.exec(["echo", "child"]).stdout.decode(), end="", flush=True)
                os._exit(0)
            print(os.wait()[1], flush=True)
            print(container.exec(["echo", "parent"]).stdout.decode(), end="", flush=True)
            print(len(runtime.images.list()) > 0, os.path.isdir(runtime._owner.private_dir), flush=True)
            assert runtime._owner._guard.poll() is None
        """
    )
    done = run_process([sys.executable, "-W", "ignore", "-c", script, busybox_image], timeout_s=60)
    lines = done.stdout.decode().splitlines()
    assert done.exit_code == 0, done.stderr
    assert all("belongs to the parent of this process" in line for line in lines[:2])
    assert lines[2:] == ["child", "0", "parent", "True True"]


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
    import os, signal, sys
    import hyperruntime as hr
    with hr.open_runtime("podman") as runtime:
        assert sys.argv[1] in [name for image in runtime.images.list() for name in image.references]
        with runtime.container(hr.ContainerSpec(image=sys.argv[1])) as container:
            assert container.exec(["echo", "works"]).stdout == b"works\\n"
            assert container.name in [owned.record.id for owned in runtime.containers()]
            print(os.path.dirname(runtime._driver._service._path("s")), runtime._owner.identity.token, flush=True)
            if len(sys.argv) > 2:
                os.kill(os.getpid(), signal.SIGKILL)
    """
)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_temporary_directory_may_have_any_name(
    busybox_image: str, tmp_path: Path, name: str, locale: str, runtime: hr.Runtime
) -> None:
    temporary = tmp_path / ODD_NAMES[name]
    temporary.mkdir(parents=True)
    cache = tmp_path / ODD_NAMES[name] / "cache"
    env = {**os.environ, "TMPDIR": str(temporary), "LC_ALL": locale, "XDG_CACHE_HOME": str(cache)}
    done = run_process([sys.executable, "-c", USE, busybox_image], env=env, timeout_s=120)
    assert done.exit_code == 0, done.stderr.decode()
    assert [path.name for path in temporary.iterdir()] == ["cache"]
    assert not os.path.exists(done.stdout.split()[0])


def test_a_killed_owner_leaves_no_socket_directory(busybox_image: str) -> None:
    done = run_process([sys.executable, "-c", USE, busybox_image, "kill"], timeout_s=120)
    assert done.exit_code == -signal.SIGKILL, done.stderr.decode()
    directory, token = done.stdout.decode().split()
    assert wait_until(lambda: not os.path.exists(directory), 10), directory
    assert wait_until(lambda: not glob.glob(f"{tempfile.gettempdir()}/hyperruntime-{os.getuid()}-{token}-*"), 10)


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
