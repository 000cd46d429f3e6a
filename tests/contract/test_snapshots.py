"""Snapshots beyond the conformance checks: depth, crowds, attributes, and what is left."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    HyperRuntimeError,
    SpecError,
    StorageError,
)
from hyperruntime.host.owner import LABEL
from hyperruntime.host.process import wait_until
from hyperruntime.layers.records import KEPT, Records
from hyperruntime.layers.snapshots import freezing

pytestmark = pytest.mark.engine
IMAGES = ("podman", "docker")  # snapshots are images of the engine
CHANGES = (
    "mkdir -p /kept/deep /gone/deep /again && echo one >/kept/file && echo old >/again/old; "
    "ln /kept/file /kept/hard; ln -s ../kept/file /kept/soft; mkfifo /kept/fifo",
    "chmod 4711 /kept/file; rm -r /etc/hostname /usr/share/doc; touch -d 2001-02-03 /kept/deep",
    "rm -r /again /gone; mkdir /again; echo new >/again/new; mkdir /usr/share/doc; echo x >/usr/share/doc/x",
    "rm /again/new; rmdir /again; echo file >/again; truncate -s 100M /kept/hole; echo x >>/kept/hole",
    "rm /again; mkdir /again; echo newer >/again/new; mv /kept/soft /kept/moved; ln /kept/hard /kept/more",
    "mkdir -m 700 /of; echo secret >/of/f; chown -R 1234:1235 /of 2>/dev/null; chmod 000 /of/f",
    'python3 -c \'import os; os.setxattr("/kept/file", "user.mine", b"x"); '
    'os.setxattr("/again", "user.mine", b"y")\'',
    "rm -r /of; mkdir /of; echo open >/of/g; rm -r /usr/share/doc",
)
LIST = """
cd / && find kept again of gone usr/share/doc \\
  \\( -type d -printf '%p %y %m %U %G %T@\\n' -o -printf '%p %y %m %U %G %n %s %b %T@ %l\\n' \\) 2>&1 | sort
cat /kept/file /kept/hole /of/* /again/* | cksum
python3 -c 'import os
for path in ("/kept/file", "/again"): print(os.listxattr(path))'
"""
ATTRIBUTES = """
import os, sys
for path in ("/d", "/d/f"):
    if sys.argv[1] == "set":
        os.setxattr(path, "user.mine", path.encode())
    print(path, [(n, os.getxattr(path, n)) for n in os.listxattr(path) if "overlay" not in n])
"""


@pytest.fixture
def spec(runtime: hr.Runtime, base_image: str) -> hr.ContainerSpec:
    return hr.ContainerSpec(image=base_image, limits=hr.Limits(pids=None))


@pytest.fixture
def container(runtime: hr.Runtime, spec: hr.ContainerSpec) -> Iterator[hr.Container]:
    with runtime.container(spec) as started:
        yield started


@pytest.fixture(autouse=True)
def has_snapshots(runtime: hr.Runtime) -> None:
    if not runtime.info.snapshots:  # the checks `snapshot.*` see it refuse them by name
        pytest.skip(f"{runtime.name} has no snapshots")


@pytest.fixture
def layered(runtime: hr.Runtime) -> None:
    if runtime.name in IMAGES:
        pytest.skip("snapshots are images of the engine, without layers of ours")


def text(container: hr.Container, script: str) -> str:
    return container.exec(["sh", "-c", script]).check().stdout.decode()


def test_git_of_every_user_works_in_a_repository_that_a_snapshot_has(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    container.put(tmp_path, "/put")
    with container.fork() as child:
        assert text(child, "echo $GIT_CONFIG_VALUE_0") == "/put\n"
    with runtime.container(spec) as other:
        other.rollback(container.snapshot())
        assert text(other, "echo $GIT_CONFIG_VALUE_0") == "/put\n"
        other.rollback(
            hr.Snapshot(id="1", engine=runtime.name, image=spec.image, layers=(), created=0.0)
        )
        assert text(other, "echo $GIT_CONFIG_VALUE_0") == "\n"


def test_a_hundred_snapshots_deep_all_files_are_there(
    runtime: hr.Runtime, busybox_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines take long for each, so they get 16, and put all into one layer after every sixth."""
    spec = hr.ContainerSpec(image=busybox_image, limits=hr.Limits(pids=None))
    depth = 16 if runtime.name in IMAGES else 100
    for name in IMAGES:
        monkeypatch.setattr(f"hyperruntime_{name}.snapshots.MOST_LAYERS", 6)
    snapshots = []
    with runtime.container(spec) as container:
        for number in range(depth):
            text(
                container, f"echo {number} >/n{number}; echo {number} >/last; rm -f /n{number - 9}"
            )
            snapshots.append(container.snapshot())
            if runtime.name in IMAGES:
                container.rollback(snapshots[-1])
        for number, one in ((depth // 2, snapshots[depth // 2]), (depth - 1, snapshots[-1])):
            with runtime.container(spec, base=one) as other:
                found = text(other, "cat /last; ls -d /n* | wc -l").split()
                assert found == [str(number), str(min(number + 1, 9))]


def test_layers_that_cannot_be_merged_are_refused_past_a_limit_and_nothing_is_lost(
    layered: None, container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(freezing, "MOST_LAYERS", 3)
    monkeypatch.setattr(freezing, "MERGED_ABOVE", 2)
    monkeypatch.setattr(freezing, "merge_layers", fail)
    earlier = container.snapshot()
    for number in range(1, 3):
        text(container, f"echo {number} >/n")
        earlier = container.snapshot()
    text(container, "echo 3 >/n")
    with pytest.raises(StorageError, match="3 snapshots lie over each other, and could not be"):
        container.snapshot()
    assert text(container, "cat /n") == "3\n"
    monkeypatch.undo()
    container.rollback(earlier)
    assert text(container, "cat /n") == "2\n"


@pytest.mark.slow
def test_a_chain_of_five_hundred_snapshots_has_all_files(
    layered: None, runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container
) -> None:
    last = container.snapshot()
    for number in range(500):
        text(container, f"echo {number} >/n{number}; rm -f /n{number - 10}")
        last = container.snapshot()
    assert len(last.layers) <= freezing.MOST_LAYERS + 1
    with runtime.container(spec, base=last) as other:
        assert text(other, "cat /n499; ls -d /n* | wc -l").split() == ["499", "10"]


def test_merged_layers_show_the_same_files(
    layered: None,
    runtime: hr.Runtime,
    spec: hr.ContainerSpec,
    container: hr.Container,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whiteouts, opaque directories, links, attributes, holes, owners; what was removed and made
    again.
    """
    monkeypatch.setattr(freezing, "MERGED_ABOVE", len(CHANGES) + 1)
    long = container.snapshot()
    for script in CHANGES:
        text(container, script)
        long = container.snapshot()
    text(container, "true >/last")
    container.snapshot()  # begins the merge
    deadline = time.monotonic() + 60
    while True:
        text(container, "rm -f /last; true >/last")
        short = container.snapshot()
        if len(short.layers) < len(CHANGES):
            break
        assert time.monotonic() < deadline
    shown = []
    for base in (long, short):
        with runtime.container(spec, base=base) as other:
            text(other, "rm -f /last")
            shown.append(text(other, LIST))
    assert shown[0] == shown[1]
    assert "again/new" in shown[0]
    assert "again/old" not in shown[0]
    assert [one for one in short.diff(long) if one.path != "/last"] == []


def test_a_runtime_that_closes_during_a_merge_leaves_nothing(
    layered: None, runtime: hr.Runtime, spec: hr.ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "MERGED_ABOVE", 1)
    before = kept_directories(runtime)
    with hr.open_runtime(runtime.name) as own, own.container(spec) as container:
        text(container, "for n in $(seq 3000); do echo $n >/n$n; done")
        container.snapshot()
        text(container, "true >/last")
        container.snapshot()
        kept = kept_directories(runtime) - before
        assert kept
    assert kept_directories(runtime) <= before
    assert not [one for one in kept if os.path.lexists(one)]


def test_a_snapshot_is_dropped_only_when_nothing_needs_it(
    layered: None, runtime: hr.Runtime, spec: hr.ContainerSpec
) -> None:
    before = kept_directories(runtime)
    with runtime.container(spec) as container:
        text(container, "echo 1 >/n")
        first = container.snapshot()
        assert not runtime.drop(first)  # its own container goes on over it
        text(container, "echo 2 >/n")
        second = container.snapshot()
    assert not runtime.drop(first)
    with runtime.container(spec, base=second) as other:
        assert not runtime.drop(second)
        assert text(other, "cat /n") == "2\n"
    assert wait_until(lambda: runtime.drop(second), 60)
    with hr.open_runtime(runtime.name) as other_runtime:
        assert not other_runtime.drop(first)  # it is not that one's
    assert runtime.drop(first)
    assert not runtime.drop(first)  # nothing is left to be removed
    assert kept_directories(runtime) <= before
    with pytest.raises(SpecError, match="a snapshot whose runtime is open"):
        runtime.container(spec, base=first)


def kept_directories(runtime: hr.Runtime) -> set[str]:
    """Return what this process keeps: other tests run beside this one."""
    records = Records(runtime.name).read_all()
    own = (one for one in records if one.keeper.pid == os.getpid())
    return {one.files for one in own if one.name.startswith(KEPT)}


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)  # an engine that takes a second for each start, on a busy machine
def test_many_forks_at_once_have_the_files_and_are_gone_after_it(
    runtime: hr.Runtime, container: hr.Container, count: int
) -> None:
    text(container, "mkdir /many; for n in $(seq 300); do echo $n >/many/$n; done")
    container.snapshot()
    names = []

    def one(_: int) -> str:
        with container.fork() as child:
            names.append(child.name)
            return text(child, "cat /many/* | wc -l; rm -r /many")

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(one, range(count))) == {"300\n"}
    assert text(container, "ls /many | wc -l") == "300\n"
    assert len(set(names)) == count
    assert not set(names) & {owned.record.id for owned in runtime.containers()}


def test_git_uses_repositories_that_were_put_before_a_snapshot(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container, tmp_path: Path
) -> None:
    (tmp_path / "mine" / ".git").mkdir(parents=True)
    fresh = container.snapshot()
    container.put(tmp_path / "mine", "/mine")
    with runtime.container(spec, base=container.snapshot()) as other:
        assert "/mine" in text(other, "env | grep GIT_CONFIG_VALUE")
        other.rollback(fresh)
        assert "GIT_CONFIG" not in text(other, "env")


def test_attributes_of_files_are_in_a_snapshot(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container
) -> None:
    text(container, "mkdir /d && touch /d/f")
    made = container.exec(["python3", "-c", ATTRIBUTES, "set"]).check().stdout
    assert b"user.mine" in made
    with runtime.container(spec, base=container.snapshot()) as other:
        found = other.exec(["python3", "-c", ATTRIBUTES, "get"]).check().stdout
    # Docker's layers have only the attribute of capabilities
    assert found == (b"/d []\n/d/f []\n" if runtime.name == "docker" else made)


def test_owners_and_closed_directories_of_other_users_are_in_a_snapshot(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container
) -> None:
    if not runtime.info.users:
        pytest.skip("this machine gives no subordinate ids, so there are no other users")
    script = "mkdir -m 700 /of && echo secret >/of/f && chown -R 1234:1235 /of && chmod 000 /of/f"
    text(container, script)
    with runtime.container(spec, base=container.snapshot()) as other:
        found = text(other, "stat -c '%u %g %a' /of /of/f; cat /of/f")
    assert found == "1234 1235 700\n1234 1235 0\nsecret\n"


def test_mounts_and_variables_stay_through_a_rollback(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    (tmp_path / "given").write_text("given\n")
    mount = hr.Mount(source=str(tmp_path), target="/mine", read_only=False)
    spec = hr.ContainerSpec(image=base_image, mounts=(mount,), env={"NAME": "value"})
    with runtime.container(spec) as container:
        ended = []
        container.on_end(lambda: ended.append(1))
        before = container.snapshot()
        text(container, "echo changed >/mine/given; echo x >/x")
        container.rollback(before)
        assert text(container, "cat /mine/given; echo $NAME; ls /x 2>/dev/null || true") == (
            "changed\nvalue\n"
        )
        assert not ended
        shell = container.shell()
        assert shell.run("echo works").stdout == b"works\n"
    assert ended


def test_limits_hold_through_rollbacks_and_its_time_goes_on(
    runtime: hr.Runtime, base_image: str
) -> None:
    """A rollback every second does not make a container live longer."""
    limits = hr.Limits(pids=None, wall_s=8, disk_bytes=20 * 2**20)
    with runtime.container(hr.ContainerSpec(image=base_image, limits=limits)) as container:
        before = container.snapshot()

        def go_on() -> None:
            for _ in range(60):
                container.rollback(before)
                container.exec(["sleep", "1"])

        with pytest.raises(ContainerLostError, match="wall_s"):
            go_on()
    with runtime.container(hr.ContainerSpec(image=base_image, limits=limits)) as container:
        container.rollback(container.snapshot())
        fill = ["sh", "-c", "head -c 60000000 /dev/zero >/big; sleep 900"]
        with pytest.raises(ContainerLostError, match="disk_bytes"):
            container.exec(fill)


def test_commands_that_run_during_a_rollback_end_with_an_error(container: hr.Container) -> None:
    before = container.snapshot()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            container.exec(["sleep", "900"])
        except HyperRuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not text(container, "grep -ls sleep /proc/[0-9]*/comm || true"):
        time.sleep(0.01)
    container.rollback(before)
    thread.join(120)
    assert len(failures) == 1
    assert text(container, "grep -ls sleep /proc/[0-9]*/comm || true") == ""


def test_a_snapshot_changes_nothing_but_files(runtime: hr.Runtime, spec: hr.ContainerSpec) -> None:
    """What a spec adds to the image stays out of it: variables, the user, the directory."""
    user = None if "user" in runtime.info.refuses else "1"
    given = attrs.evolve(spec, env={"MINE": "secret"}, workdir="/tmp", user=user)
    show = "env | grep -v '^HOSTNAME=' | sort; pwd; id"
    with runtime.container(spec) as plain, runtime.container(given) as changed:
        text(changed, "echo x >/tmp/x")
        with runtime.container(spec, base=changed.snapshot()) as other:
            assert text(other, show) == text(plain, show)
            assert text(other, "cat /tmp/x") == "x\n"


def test_a_shell_whose_text_runs_after_a_snapshot_is_seen_by_the_next_one(
    runtime: hr.Runtime, container: hr.Container
) -> None:
    with container.shell() as shell:
        container.snapshot()
        if runtime.name in IMAGES:  # without an engine, the shell ends
            shell.run("echo later >/later").check()
            shell.close()
            with container.fork() as child:
                assert text(child, "cat /later") == "later\n"


def test_a_closed_runtime_leaves_no_image(runtime: hr.Runtime, base_image: str) -> None:
    if runtime.name not in IMAGES:
        pytest.skip("no images here")
    with hr.open_runtime(runtime.name) as another:
        with another.container(hr.ContainerSpec(image=base_image)) as container:
            snapshot = container.snapshot()
            for _ in range(2):  # the second lies over the first
                text(container, "date >/x")
                snapshot = container.snapshot()
                container.rollback(snapshot)
        args = [runtime.name, "images", "--all", "--quiet", "--no-trunc"]
        args += [f"--filter=label={LABEL}={another._owner.identity.token}"]
        if runtime.info.rootless and runtime.name == "podman":
            from hyperruntime_podman.own_store import own_store_args

            args[1:1] = own_store_args()
        listed = partial(subprocess.check_output, args, text=True)
        assert len(listed().split()) == 3
    assert listed() == ""
    with pytest.raises(SpecError, match="a snapshot whose runtime is open"):
        runtime.container(hr.ContainerSpec(image=base_image), base=snapshot)


def test_a_snapshot_of_another_image_and_one_of_a_closed_container_are_refused(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container
) -> None:
    text(container, "echo kept >/kept")
    snapshot = container.snapshot()
    other = hr.Snapshot(id="x", engine=runtime.name, image="other", layers=(), created=0.0)
    for use in (
        lambda: container.rollback(other),
        lambda: runtime.container(spec, base=other),
    ):
        with pytest.raises(SpecError, match="and of image"):
            use()
    container.close()
    with pytest.raises(ContainerStateError, match="closed"):
        container.rollback(snapshot)
    with runtime.container(spec, base=snapshot) as later:  # it belongs to the runtime
        assert text(later, "cat /kept") == "kept\n"
