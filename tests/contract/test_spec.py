"""Each field of a spec is honoured or refused, and the defaults are safe."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    EngineError,
    ImageNotFoundError,
    SpecError,
    TransferError,
    UnsupportedOptionError,
)
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine


def test_the_defaults_are_safe(container: hr.Container) -> None:
    status = dict(
        line.split(":", 1) for line in container.exec(["cat", "/proc/self/status"]).stdout.decode().splitlines()
    )
    assert status["NoNewPrivs"].strip() == "1"
    dangerous = {"SYS_ADMIN": 21, "SYS_PTRACE": 19, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_MODULE": 16, "MKNOD": 27}
    effective = int(status["CapBnd"], 16)
    assert not [name for name, bit in dangerous.items() if effective >> bit & 1]
    lines = container.exec(["cat", "/proc/net/dev"]).stdout.splitlines()
    assert [line.split(b":")[0].strip() for line in lines if b":" in line] == [b"lo"]
    assert re.search(rb"-init|appinit|bwrap", container.exec(["cat", "/proc/1/cmdline"]).stdout)


def test_no_network_is_really_none(container: hr.Container) -> None:
    script = "import socket; s = socket.socket(); s.settimeout(2); s.connect(('192.0.2.1', 80))"
    result = container.exec(["python3", "-c", script])
    assert b"Network is unreachable" in result.stderr


def test_zombies_are_reaped(container: hr.Container) -> None:
    container.exec(["sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done"])
    container.exec(["sleep", "0.3"])

    def listed() -> bytes:
        return container.exec(["ps", "-axo", "args="]).stdout

    assert wait_until(lambda: not re.search(rb"sleep 0\.05|defunct", listed()), 60), listed()


def test_mounts_are_as_asked(runtime: hr.Runtime, base_image: str, odd_path: Path) -> None:
    (odd_path / "file").write_text("host")
    (odd_path / "comma,colon:name").mkdir()
    mounts = (
        hr.Mount(source=str(odd_path), target="/read only"),
        hr.Mount(source=str(odd_path / "comma,colon:name"), target="/write", read_only=False),
    )
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=mounts)) as started:
        assert started.exec(["cat", "/read only/file"]).stdout == b"host"
        assert started.exec(["touch", "/read only/new"]).exit_code == 1
        assert started.exec(["sh", "-c", "echo in > /write/new"]).exit_code == 0
    assert (odd_path / "comma,colon:name/new").read_text() == "in\n"


def test_the_source_of_a_mount_may_be_relative(
    runtime: hr.Runtime, busybox_image: str, odd_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd_path / "file").write_text("host")
    monkeypatch.chdir(odd_path)
    mount = hr.Mount(source=".", target="/data")
    monkeypatch.chdir("/")
    with runtime.container(hr.ContainerSpec(image=busybox_image, mounts=(mount,))) as started:
        assert started.exec(["cat", "/data/file"]).stdout == b"host"


def test_a_mount_may_take_the_place_of_tmp_in_a_read_only_root(
    runtime: hr.Runtime, busybox_image: str, tmp_path: Path
) -> None:
    mounts = (hr.Mount(source=tmp_path, target="/tmp/", read_only=False),)
    with runtime.container(hr.ContainerSpec(image=busybox_image, mounts=mounts, read_only_rootfs=True)) as started:
        assert started.exec(["sh", "-c", "echo in > /tmp/file"]).exit_code == 0
    assert (tmp_path / "file").read_text() == "in\n"


@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_copying_does_not_depend_on_the_path_of_the_spec(
    runtime: hr.Runtime, images: dict[str, str], shell: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(hr.ContainerSpec(image=images[shell], env={"PATH": "/nowhere"})) as started:
        started.put(tmp_path / "file", "/new/file")
        started.get("/new/file", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "x"


def test_an_image_without_tar_is_named_as_that(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        started.exec(["rm", "/bin/tar"]).check()
        with pytest.raises(TransferError, match="has no tar"):
            started.put(tmp_path / "file", "/file")
        with pytest.raises(TransferError, match="has no tar"):
            started.get("/bin", tmp_path / "bin")


def test_a_read_only_root_is_read_only(runtime: hr.Runtime, base_image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, read_only_rootfs=True)) as started:
        assert started.exec(["touch", "/usr/new"]).exit_code == 1
        assert started.exec(["touch", "/tmp/new"]).exit_code == 0


def test_the_exchange_cannot_be_changed_from_inside(container: hr.Container) -> None:
    container.exec(["true"])
    script = "cd /run/hyperruntime; touch x; rm -rf *; mv lane.sh y; (: > lane.sh); ls"
    listed = container.exec(["sh", "-c", script]).stdout.split()
    assert b"lane.sh" in listed
    assert b"x" not in listed
    assert container.exec(["echo", "works"]).stdout == b"works\n"


def test_a_user_of_the_spec_runs_every_exec(runtime: hr.Runtime, base_image: str, has_users: bool) -> None:
    if not has_users:
        return
    with runtime.container(hr.ContainerSpec(image=base_image, user="65534:65534")) as started:
        assert started.exec(["id", "-u"]).stdout == b"65534\n"
        assert started.exec(["sh", "-c", "setsid sleep 931 & sleep 932"], timeout_s=0.5).timed_out
        assert b"sleep 93" not in started.exec(["ps", "-axo", "args="]).stdout


def test_the_pids_limit_holds(runtime: hr.Runtime, base_image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, limits=hr.Limits(pids=60))) as started:
        script = "n=0; while [ $n -lt 200 ]; do sleep 5 & n=$((n+1)); done"
        result = started.exec(["sh", "-c", script], timeout_s=20)
        assert result.exit_code != 0
        assert b"fork" in result.stderr.lower()


def test_a_limit_is_enforced_or_refused(runtime: hr.Runtime, base_image: str) -> None:
    spec = hr.ContainerSpec(image=base_image, limits=hr.Limits(cpus=0.5))
    if runtime.info.limits["cpus"] == "no":
        with pytest.raises(UnsupportedOptionError, match="cpus"):
            runtime.container(spec)
        return
    with runtime.container(spec) as started:
        script = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time())"
        assert float(started.exec(["python3", "-c", script]).stdout) < 1.2


def test_the_host_network_is_there_when_asked_for(runtime: hr.Runtime, base_image: str) -> None:
    before = set(os.listdir("/sys/class/net"))
    with runtime.container(hr.ContainerSpec(image=base_image, network="host")) as started:
        inside = started.exec(["cat", "/proc/net/dev"]).stdout.decode().splitlines()
    after = set(os.listdir("/sys/class/net"))
    found = {line.split(":")[0].strip() for line in inside if ":" in line}
    assert before & after <= found <= before | after  # other containers' come and go


def test_the_bridge_is_private_or_refused(runtime: hr.Runtime, base_image: str) -> None:
    spec = hr.ContainerSpec(image=base_image, network="bridge")
    if "bridge" not in runtime.info.networks:
        with pytest.raises(UnsupportedOptionError, match="network"):
            runtime.container(spec)
        return
    with runtime.container(spec) as started:
        assert len(started.exec(["ls", "/sys/class/net"]).stdout.split()) == 2


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"image": "localhost/no-such-image:1"}, ImageNotFoundError, "localhost/no-such-image:1"),
        ({"workdir": "/no/such/dir"}, SpecError, "workdir"),
        ({"user": "nobody-at-all"}, (SpecError, UnsupportedOptionError), "user"),
        ({"mounts": (hr.Mount(source="/no/such/source", target="/x"),)}, SpecError, "exists on this machine"),
    ],
)
def test_what_cannot_be_had_is_one_clear_error(
    runtime: hr.Runtime, base_image: str, change: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        runtime.container(hr.ContainerSpec(**{"image": base_image, **change}))  # type: ignore[arg-type]


def test_the_user_that_an_exec_asked_for_is_the_one_that_is_named(container: hr.Container, has_users: bool) -> None:
    if not has_users:
        return
    error = container._live.explain_start_failure("unable to find user x: no matching entries in passwd file", "x")
    assert isinstance(error, SpecError)
    assert error.value == "x"


def test_more_environment_than_a_command_line_holds_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    env = {f"A{number}": "x" * 100_000 for number in range(40)}
    with pytest.raises(SpecError, match="more than a command line holds"):
        runtime.container(hr.ContainerSpec(image=base_image, env=env))


def test_one_variable_longer_than_a_command_can_have_is_refused(runtime: hr.Runtime, base_image: str) -> None:
    with pytest.raises(SpecError, match="128 KiB"):
        runtime.container(hr.ContainerSpec(image=base_image, env={"A": "x" * 128 * 1024}))


def test_the_environment_is_on_no_command_line_of_this_machine(runtime: hr.Runtime, base_image: str) -> None:
    secret = f"key-{uuid.uuid4().hex}"
    with runtime.container(hr.ContainerSpec(image=base_image, env={"API_KEY": secret})) as container:
        seen = container.exec(["sh", "-c", "echo $API_KEY; cat /proc/[0-9]*/cmdline; true"]).check().stdout
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert seen.startswith(secret.encode())
    assert secret.encode() not in seen.removeprefix(secret.encode()) + b"".join(lines)


def test_an_image_without_a_shell_is_refused_clearly(runtime: hr.Runtime, tmp_path: Path) -> None:
    import tarfile

    (tmp_path / "file").write_text("x")
    with tarfile.open(tmp_path / "empty.tar", "w") as archive:
        archive.add(tmp_path / "file", "file")
    reference = "localhost/hyperruntime-test/empty:latest"
    runtime.images._images.load_rootfs(tmp_path / "empty.tar", reference)
    try:
        with pytest.raises(EngineError, match="no /bin/sh"):
            runtime.container(hr.ContainerSpec(image=reference))
    finally:
        runtime.images.remove(reference)
