"""Snapshots with names: they outlive their runtime, and other processes find them."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.errors import EngineError, ImageError, SpecError, UnsupportedOptionError
from hyperruntime.host.process import ProcessResult, find_program, run_process, wait_until
from hyperruntime.layers.images import StoredImages
from hyperruntime.layers.overlays import FUSE
from hyperruntime.layers.snapshots import freezing
from hyperruntime.layers.store import Store

pytestmark = pytest.mark.engine
IMAGES = ("podman", "docker")  # snapshots are images of the engine
OTHER = """
import sys
import tarfile
import hyperruntime as hr
engine, image, name = sys.argv[1:]
with hr.open_runtime(engine) as runtime:
    spec = hr.ContainerSpec(image=image, limits=hr.Limits(pids=None))
    with runtime.container(spec, base=name) as container:
        print(container.exec(["cat", "/state"]).check().stdout.decode())
        container.exec(["sh", "-c", "echo other >/state"]).check()
        container.snapshot(name=name + "-2")
"""
LOOP = """
import sys
import tarfile
import hyperruntime as hr
engine, image, name = sys.argv[1:]
with hr.open_runtime(engine) as runtime:
    spec = hr.ContainerSpec(image=image, limits=hr.Limits(pids=None))
    with runtime.container(spec) as container:
        number = 0
        while True:
            number += 1
            script = "echo $0 >/state; mkdir -p /made/$0; for n in 1 2 3 4; do cp /state /made/$0/$n; done"
            container.exec(["sh", "-c", script, str(number)]).check()
            with container.fork() as child:
                child.exec(["rm", "/state"]).check()
            container.snapshot(name=f"{name}-{number}")
            print(number, flush=True)
            if number % 2 == 0:
                runtime.snapshots.remove(f"{name}-{number}")
                print(-number, flush=True)
"""
HOLD = """
import sys
import time
import hyperruntime as hr
engine, image = sys.argv[1:]
with hr.open_runtime(engine) as runtime:
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        first = container.snapshot()
        container.exec(["touch", "/later"]).check()
        print(*first.layers, *container.snapshot().layers, flush=True)
        time.sleep(900)
"""


@pytest.fixture
def spec(base_image: str) -> hr.ContainerSpec:
    return hr.ContainerSpec(image=base_image, limits=hr.Limits(pids=None))


@pytest.fixture
def container(runtime: hr.Runtime, spec: hr.ContainerSpec) -> Iterator[hr.Container]:
    with runtime.container(spec) as started:
        yield started


@pytest.fixture
def name(runtime: hr.Runtime) -> Iterator[str]:
    """Return a name; all snapshots whose names begin with it are removed after the test."""
    snapshots = runtime.snapshots
    unique = f"test-{uuid.uuid4().hex[:8]}"
    yield unique
    for one in snapshots.list():
        if one.name.startswith(unique):
            snapshots.remove(one.name)


def text(container: hr.Container, script: str) -> str:
    return container.exec(["sh", "-c", script]).check().stdout.decode()


def shown(changes: tuple[hr.FileChange, ...]) -> list[str]:
    return list(map(str, changes))


def test_another_process_starts_from_a_name_after_the_runtime_has_closed(
    runtime: hr.Runtime, spec: hr.ContainerSpec, name: str
) -> None:
    with hr.open_runtime(runtime.name) as own, own.container(spec) as container:
        text(container, "echo one >/state; rm -r /usr/share/doc")
        kept = container.snapshot(name=name)
        text(container, "echo two >/state")
    command = [sys.executable, "-c", OTHER, runtime.name, spec.image, name]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout == b"one\n\n"
    names = [one.name for one in runtime.snapshots.list() if one.name.startswith(name)]
    assert names == [name, f"{name}-2"]
    with runtime.container(spec, base=f"{name}-2") as container:
        assert text(container, "cat /state; ls -d /usr/share/doc || true") == "other\n"
    with runtime.container(spec, base=kept) as container:
        assert text(container, "cat /state") == "one\n"
    runtime.snapshots.remove(name)
    with pytest.raises(SpecError, match="no snapshot has this name"):
        runtime.container(spec, base=name)
    with pytest.raises(SpecError, match="is not allowed: a snapshot whose runtime is open"):
        runtime.container(spec, base=kept)
    runtime.snapshots.remove(f"{name}-2")
    if runtime.name in IMAGES:  # it lay over the first
        assert runtime.snapshots._images.inspect(*kept.layers) is None  # type: ignore[attr-defined]


def test_files_are_on_the_disk_before_they_have_the_name(
    runtime: hr.Runtime,
    container: hr.Container,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    rename, fsync = os.rename, os.fsync

    def noted_run(args: list[str], **options: Any) -> ProcessResult:
        done.extend(["sync"] * (args[0] == "sync"))
        return run_process(args, **options)

    def noted_rename(old: Any, new: Any) -> None:
        done.extend(["rename"] * (name in str(new) + str(old)))
        rename(old, new)

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append("fsync")

    if runtime.name in IMAGES:
        pytest.skip("the engine writes its images")
    living = container.snapshot()
    monkeypatch.setattr(freezing, "run_process", noted_run)
    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    runtime.snapshots.keep(living, name)
    runtime.snapshots.remove(name)
    assert done == ["sync", "rename", "fsync", "rename", "fsync"]


async def test_pools_and_async_starts_take_a_name(
    runtime: hr.Runtime,
    spec: hr.ContainerSpec,
    container: hr.Container,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_fits = hr.Snapshot.check_fits

    def noted(snapshot: hr.Snapshot, engine: str, image: str) -> None:
        assert threading.current_thread() is not threading.main_thread()  # it may ask the engine
        check_fits(snapshot, engine, image)

    text(container, "echo one >/state")
    kept = container.snapshot(name=name)
    async with await runtime.acontainer(spec, base=name) as other:
        assert text(other, "cat /state") == "one\n"
    async with hr.SlotPool(runtime, hr.PoolConfig(spec=spec, slots_per_container=1)) as pool:
        monkeypatch.setattr(hr.Snapshot, "check_fits", noted)
        async with pool.lease(base=name) as lease:
            assert (await lease.exec(["cat", "/state"])).stdout == b"one\n"
        with pytest.raises(SpecError, match="no snapshot has this name"):
            await pool.acquire(base=f"{name}-x")
    assert not runtime.drop(kept)  # names end with `remove` alone
    assert runtime.snapshots.find(name) == kept


def test_names_that_exist_and_those_that_are_no_names_are_refused(
    runtime: hr.Runtime, container: hr.Container, name: str, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    container.put(tmp_path, "/put")
    first = container.snapshot(name=name)
    assert (first.name, first.repositories) == (name, ("/put",))
    text(container, "echo later >/later")
    with pytest.raises(SpecError, match="a snapshot has this name"):
        container.snapshot(name=name)
    with pytest.raises(SpecError, match="a snapshot has this name"):
        runtime.snapshots.keep(container.snapshot(), name)
    for wrong in ("", "../x", ".new", "a/b", "a" * 101):
        with pytest.raises(SpecError, match="use letters"):
            container.snapshot(name=wrong)
        with pytest.raises(SpecError, match="no snapshot has"):
            runtime.snapshots.find(wrong)
    assert runtime.snapshots.find(name) == first
    with pytest.raises(SpecError, match="no snapshot has"):
        runtime.snapshots.remove(f"{name}-x")


def test_a_snapshot_in_use_is_not_removed_and_pruning_keeps_it(
    runtime: hr.Runtime, spec: hr.ContainerSpec, container: hr.Container, name: str
) -> None:
    text(container, "echo one >/state")
    container.snapshot(name=name)
    with runtime.container(spec, base=name) as user:
        with pytest.raises(EngineError, match=f"is used by the container {user.name}"):
            runtime.snapshots.remove(name)
        living = container.snapshot()
        runtime.prune()
        assert text(user, "cat /state") == "one\n"
    with runtime.container(spec, base=living) as other:
        assert text(other, "cat /state") == "one\n"
    assert runtime.snapshots.find(name).name == name


def test_a_container_that_the_user_started_from_a_name_by_hand_stays(
    runtime: hr.Runtime, spec: hr.ContainerSpec, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime.name not in IMAGES:
        pytest.skip("snapshots are no images")
    with hr.open_runtime(runtime.name) as own, own.container(spec) as container:
        kept = container.snapshot(name=name)
    module = importlib.import_module(f"hyperruntime_{runtime.name}.snapshots")
    store = module._store_of(*kept.layers) if runtime.name == "podman" else ()

    def engine(*words: str) -> str:
        done = run_process([runtime.name, *store, *words], timeout_s=60)
        assert done.exit_code == 0, done.error_text
        return done.stdout.decode().strip()

    tag = f"localhost/hyperruntime-named/{os.getuid()}:{name}"
    engine("create", "--name", name, tag, "true")
    try:
        with pytest.raises(EngineError, match=f"'{name}' is used by the container {name}"):
            runtime.snapshots.remove(name)
        with monkeypatch.context() as patched:  # it starts between the list and the removal
            patched.setattr(module.SnapshotImages, "users", lambda *_: [])
            with pytest.raises(EngineError, match="snapshots cannot be removed: "):
                runtime.snapshots.remove(name)
        assert engine("inspect", "--format", "{{.State.Status}}", name) == "created"
        assert runtime.snapshots.find(name) == kept
    finally:
        engine("rm", "--force", name)


def test_an_image_cannot_get_the_name_of_a_snapshot(
    runtime: hr.Runtime, container: hr.Container, name: str, tmp_path: Path
) -> None:
    if runtime.name not in IMAGES:
        pytest.skip("snapshots are no images")
    kept = container.snapshot(name=name)
    tag = f"localhost/hyperruntime-named/{os.getuid()}:{name}"
    text(container, "touch /other")
    container.snapshot().save(tmp_path / "a.tar", tag)
    with pytest.raises(ImageError, match=f"it has the name {tag}; snapshots have such"):
        runtime.images.load(tmp_path / "a.tar")
    assert runtime.snapshots.find(name) == kept


def test_the_changes_between_snapshots_are_listed(container: hr.Container, name: str) -> None:
    text(container, "mkdir -p /new/deep /away; echo x >/new/f; echo x >/away/f; echo x >/other")
    first = container.snapshot()
    text(container, "rm -r /away /etc/profile; echo y >/new/f; touch /new/g; chmod 700 /new/deep")
    text(container, "rm /other; mkdir /other; touch /other/in; : >>/etc/passwd")
    second = container.snapshot()
    expected = (
        "removed /away, removed /away/f, removed /etc/profile, changed /new/deep, changed /new/f, "
        "added /new/g, changed /other, added /other/in"
    )
    assert shown(second.diff(first)) == expected.split(", ")
    assert shown(container.snapshot(name=name).diff(second)) == []
    assert second.diff(second) == ()
    since_image = shown(second.diff())
    expected = (
        "added /new, added /new/deep, added /new/f, added /new/g, added /other, added /other/in"
    )
    own = [one for one in since_image if not re.search(" /(etc|run)/", one)]  # not mount points
    assert own == expected.split(", ")
    assert "removed /etc/profile" in since_image
    assert "changed /etc/passwd" not in since_image


def test_a_saved_snapshot_is_an_image(
    runtime: hr.Runtime, container: hr.Container, name: str, tmp_path: Path
) -> None:
    text(container, "echo x >/state; rm -r /usr/share/doc; chmod 4711 /state; ln /state /hard")
    archive = tmp_path / "saved.tar"
    reference = f"localhost/hyperruntime-test/{name}:1"
    container.snapshot(name=name).save(archive, reference)
    with pytest.raises(SpecError, match="set force"):
        container.snapshot().save(archive, reference)
    assert runtime.images.load(archive) == (reference,)
    loaded = hr.ContainerSpec(image=reference, limits=hr.Limits(pids=None))
    try:
        with runtime.container(loaded) as other:
            script = (
                "stat -c '%a %h' /state; cat /hard; ls -d /usr/share/doc || true; ls /usr/share"
            )
            assert text(other, script) == text(container, script)
    finally:
        runtime.images.remove(reference)


@pytest.fixture
def moved(runtime: hr.Runtime, busybox_image: str, name: str) -> Iterator[tuple[Store, str, str]]:
    """Return the store, a reference of one image, and the digest of another one."""
    if not isinstance(runtime.images._images, StoredImages):
        pytest.skip("this engine has a store of its own")
    store = Store()
    reference = f"localhost/hyperruntime-test/{name}:1"
    base = store.find(busybox_image)
    assert base is not None
    digests = [uuid.uuid4().hex * 2 for _ in range(2)]

    def fill(directory: Path) -> None:
        subprocess.run(["cp", "-a", store.tree(base), directory / "rootfs"], check=True)
        (directory / "rootfs" / "which").write_text(directory.name)

    for digest in reversed(digests):
        store.make(digest, reference, fill)
    yield store, reference, digests[1]
    for digest in digests:
        if (entry := store.find(digest)) is not None:
            store.untag(entry, digest)


def test_a_snapshot_keeps_its_image_when_the_tag_moves_and_when_images_are_removed(
    runtime: hr.Runtime, moved: tuple[Store, str, str], name: str
) -> None:
    store, reference, other_digest = moved
    spec = hr.ContainerSpec(image=reference, limits=hr.Limits(pids=None))
    first = store.find(reference)
    assert first is not None
    with hr.open_runtime(runtime.name) as own, own.container(spec) as container:
        was = text(container, "cat /which")
        living = container.snapshot()
        container.snapshot(name=name)
        store.make(other_digest, reference, lambda _: None)
        container.rollback(living)
        assert text(container, "cat /which") == was
        with runtime.container(spec) as later:
            assert text(later, "cat /which") != was
            with pytest.raises(SpecError):
                later.rollback(attrs.evolve(living, image="other"))
        with pytest.raises(EngineError, match="is used by the container"):
            own.images.remove(first.id)
        container.close()
        with pytest.raises(EngineError, match=f"a snapshot of process {os.getpid()}; close"):
            own.images.remove(first.id)
    with pytest.raises(EngineError, match=f"the snapshot '{name}'; `hyperrun --runtime"):
        runtime.images.remove(first.id)
    with runtime.container(spec, base=name) as later:
        assert text(later, "cat /which") == was
    kept = runtime.snapshots.find(name)
    store.untag(first, first.id)
    with pytest.raises(SpecError, match="one whose image is still here"):
        runtime.container(spec, base=kept)


def test_killed_processes_leave_whole_names_and_nothing_else(
    runtime: hr.Runtime, spec: hr.ContainerSpec, name: str
) -> None:
    """They are killed at random instants while they make snapshots, forks, names, and remove
    names.
    """
    seed = random.randrange(10**6)
    print("seed", seed)
    instants = random.Random(seed)
    for number in range(KILLS):
        own = f"{name}-{number}"
        command = [sys.executable, "-c", LOOP, runtime.name, spec.image, own]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(instants.random())
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().split()
        done = {int(line) for line in lines if line.strip()}
        found = {
            int(one.name.rpartition("-")[2]): one
            for one in runtime.snapshots.list()
            if one.name.startswith(f"{own}-")
        }
        sure = {one for one in done if one > 0 and one % 2}
        assert sure <= set(found) <= sure | {max(done) + 1, max(done)}
        for made in (min(found), max(found)):
            with runtime.container(spec, base=found[made]) as container:
                counts = text(container, "cat /state; ls /made | wc -l; cat /made/*/* | wc -l")
                assert counts.split() == [str(made), str(made), str(4 * made)]
    runtime.prune()
    assert left(runtime) == []


def test_a_tag_that_the_user_gave_to_a_snapshot_stays_when_its_owner_is_killed(
    runtime: hr.Runtime, spec: hr.ContainerSpec, name: str
) -> None:
    if runtime.name not in IMAGES:
        pytest.skip("snapshots are no images")
    images = runtime.snapshots._images  # type: ignore[attr-defined]
    mine = f"localhost/hyperruntime-test/{name}:mine"
    command = [sys.executable, "-c", HOLD, runtime.name, spec.image]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tagged, other = process.stdout.readline().split()
        images.tag(tagged, mine)
        process.kill()
    try:
        assert wait_until(lambda: images.inspect(tagged)["RepoTags"] == [mine], 60)
        assert images.inspect(other) is None
    finally:
        images.remove([mine])
    assert images.inspect(tagged) is None


KILLS = int(os.environ.get("HYPERRUNTIME_TEST_KILLS", "5"))


def left(runtime: hr.Runtime) -> list[str]:
    """Return what killed processes left, after some time for their guards."""
    deadline = time.monotonic() + 60
    while True:
        runtime.prune()
        records = [one.record.id for one in runtime.containers() if one.owner_state == "dead"]
        place = Path(runtime.snapshots.list()[0].layers[0]).parent.parent / ".new"
        unfinished = [] if runtime.name in IMAGES else list(map(str, place.iterdir()))
        if not records + unfinished or time.monotonic() > deadline:
            return records + unfinished
        time.sleep(0.2)


@pytest.mark.slow
def test_without_overlays_snapshots_are_whole_copies(
    runtime: hr.Runtime,
    spec: hr.ContainerSpec,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if runtime.name != "bubblewrap":
        pytest.skip("only bubblewrap copies files")
    driver = importlib.import_module("hyperruntime_bubblewrap.driver")
    found, _ = driver.cached_probe()
    with runtime.container(spec) as container:
        text(container, "rm -r /usr/share/doc; mkdir /usr/share/doc; echo layers >/state")
        container.snapshot()
        text(container, "echo more >/usr/share/doc/more; rm /etc/hostname")
        layered = container.snapshot()
        text(container, "rm /usr/share/doc/more")
        container.snapshot(name=f"{name}-layers")
    monkeypatch.setattr(driver, "cached_probe", lambda: (attrs.evolve(found, storage="copy"), True))
    with hr.open_runtime(runtime.name) as copying, copying.container(spec) as container:
        assert copying.info.storage == "copy"
        text(
            container, "echo one >/state; chown 1234:1235 /state 2>/dev/null; rm -r /usr/share/doc"
        )
        first = container.snapshot(name=name)
        text(container, "echo two >/state; mkdir /made; chmod 600 /made")
        second = container.snapshot()
        assert shown(second.diff(first)) == ["added /made", "changed /state"]
        with pytest.raises(UnsupportedOptionError, match="do not know their image"):
            second.diff()
        see = "cat /state; ls /usr/share/doc; ls /etc/hostname || python3 -c 'import os; "
        see += """print(os.listxattr("/usr/share/doc"))'"""
        for base, seen in ((layered, "layers\nmore\n[]\n"), (f"{name}-layers", "layers\n[]\n")):
            with copying.container(spec, base=base) as other, other.fork() as child:
                assert text(other, see) == text(child, see) == seen
        look = "stat -c '%u %g %a' /state; cat /state; ls /made || true"
        was = text(container, look)
        container.rollback(first)
        assert "one" in text(container, look)
        with container.fork() as child:
            assert "one" in text(child, look)
        with copying.container(spec, base=second) as other:
            assert text(other, look) == was
        second.save(tmp_path / "saved.tar")
    with runtime.container(spec, base=name) as other:  # a whole tree is below an overlay
        assert "one" in text(other, look)
    with tarfile.open(tmp_path / "saved.tar") as archive:
        assert "layer.tar" in archive.getnames()


def test_removed_files_stay_removed_where_fuse_overlayfs_mounts_the_layers(
    runtime: hr.Runtime,
    spec: hr.ContainerSpec,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It marks them by names. Once they came back, and the marks were shown as files."""
    if runtime.name != "bubblewrap" or not (find_program(FUSE) and os.path.exists("/dev/fuse")):
        pytest.skip("bubblewrap alone uses fuse-overlayfs, and where it is installed")
    driver = importlib.import_module("hyperruntime_bubblewrap.driver")
    found = attrs.evolve(driver.cached_probe()[0], storage=FUSE)
    look = "find /made /usr/share/doc /etc/issue 2>/dev/null | sort"
    with monkeypatch.context() as patched:
        patched.setattr(driver, "cached_probe", lambda: (found, True))
        with hr.open_runtime("bubblewrap") as other, other.container(spec) as container:
            text(container, "mkdir /made; touch /made/old; rm -r /usr/share/doc /etc/issue")
            first = container.snapshot()
            text(container, "rm -r /made; mkdir /made /usr/share/doc; touch /made/new")
            second = container.snapshot(name)
            assert shown(second.diff(first)) == [
                "added /made/new",
                "removed /made/old",
                "added /usr/share/doc",
            ]
            with other.container(spec, base=name) as child:
                assert text(child, look).split() == ["/made", "/made/new", "/usr/share/doc"]
            second.save(tmp_path / "saved.tar")
    with pytest.raises(UnsupportedOptionError, match="of another kind than here"):
        runtime.container(spec, base=name)
    with tarfile.open(tmp_path / "saved.tar") as archive:
        (layer,) = [archive.extractfile(one) for one in archive if one.name == "layer.tar"]
        with tarfile.open(fileobj=layer) as files:
            names = files.getnames()
    assert [one for one in names if ".wh." in one or "usr/share/doc/" in one] == []
    assert "./made/new" in names


def test_the_command_line_lists_compares_saves_and_removes(
    runtime: hr.Runtime, container: hr.Container, name: str, tmp_path: Path
) -> None:
    def said(*args: str) -> str:
        words = [sys.executable, "-m", "hyperruntime", "--runtime", runtime.name, "snapshot", *args]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

    text(container, "mkdir /made")
    container.snapshot(name=name)
    text(container, "echo x >/made/in")
    container.snapshot(name=f"{name}-2")
    assert f"\n{name} " in said("list")
    assert name in {one["name"] for one in json.loads(said("list", "--json"))}
    assert "added /made\n" in said("diff", name)
    assert said("diff", f"{name}-2", name) == "added /made/in\n"
    assert json.loads(said("diff", f"{name}-2", name, "--json"))[0]["path"] == "/made/in"
    archive = str(tmp_path / "a.tar")
    assert said("save", name, archive) == f"{archive}\n"
    assert said("remove", name, f"{name}-2") == f"removed {name}\nremoved {name}-2\n"
