"""Apptainer: its writable layer, isolation from the host, images by path, and the processes of one
container.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import EngineUnavailableError, ImageBuildError, ImageError
from hyperruntime.host.process import run_process, spawn, wait_until
from hyperruntime_apptainer import ApptainerDriver, records
from hyperruntime_apptainer.archive import file_digest
from hyperruntime_apptainer.scratch import scratch_directory
from hyperruntime_apptainer.store import VARIABLE, Store
from tests.processes import command_line

pytestmark = pytest.mark.engine
MIB = 1024**2
BUILT = "localhost/hyperruntime-test/attack:latest"
TOKEN = "tok-5f2c-never-kept"


@pytest.fixture(scope="module")
def runtime() -> Iterator[hr.Runtime]:
    """A runtime of Apptainer, also if the other tests use another engine."""
    with hr.open_runtime("apptainer") as opened:
        yield opened


@pytest.fixture(scope="module")
def image(runtime: hr.Runtime) -> str:
    return runtime.images.ensure("base")


@pytest.fixture(scope="module")
def container(runtime: hr.Runtime, image: str) -> Iterator[hr.Container]:
    with runtime.container(hr.ContainerSpec(image=image)) as started:
        yield started


def test_nothing_of_the_host_is_visible(container: hr.Container) -> None:
    home = str(Path.home())
    assert container.exec(["ls", "-A", "/home"]).stdout == b""
    assert container.exec(["ls", "-A", "/tmp"]).stdout == b""
    assert container.exec(["test", "-e", home]).exit_code == 1
    assert b"hyperruntime-test" not in container.exec(["cat", "/etc/passwd"]).stdout
    assert container.exec(["sh", "-c", "ls /proc | grep -c '^[0-9]'"]).exit_code == 0
    assert int(container.exec(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).stdout) < 10
    assert container.exec(["sh", "-c", "echo 1 >/proc/sys/vm/drop_caches"]).exit_code != 0
    names = {line.partition(b"=")[0] for line in container.exec(["env"]).stdout.splitlines()}
    assert names <= {b"PATH", b"HOME", b"PWD", b"OLDPWD", b"SHLVL", b"_", b"LC_ALL"}


def test_the_process_limit_does_not_apply_to_apptainer_itself(
    runtime: hr.Runtime, image: str
) -> None:
    """Otherwise a fork loop leaves no process for a thread of Apptainer, which then aborts with its
    container.
    """
    with runtime.container(hr.ContainerSpec(image=image, limits=hr.Limits(pids=100))) as started:
        inside = started.exec(["cat", "/proc/self/limits"]).check().stdout.decode()
        assert limit_on_processes(inside) == "100"
        files = next(record.files for record in records.read_all() if record.name == started.name)
        limits = {
            process.pid: limit_on_processes(Path(f"/proc/{process.pid}/limits").read_text())
            for process in records.processes_of(files)
            if "apptainer" in " ".join(command_line(process)[:1]).lower()
        }
    assert limits
    assert "100" not in limits.values()


def limit_on_processes(table: str) -> str:
    """Return the soft limit in ``/proc/PID/limits``."""
    return next(line.split()[2] for line in table.splitlines() if line.startswith("Max processes"))


def test_a_closed_container_leaves_no_file_and_no_record(runtime: hr.Runtime, image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=image)) as started:
        started.exec(
            [
                "sh",
                "-c",
                "mkdir -p /closed/in && touch /closed/in/file && chmod 0 /closed/in /closed",
            ]
        )
        if runtime.info.users:  # the files of other users have subordinate ids on the host
            user = hr.RunAs(uid=20_001)
            started.exec(
                ["sh", "-c", "mkdir -p /tmp/mine/in && touch /tmp/mine/in/file"], user=user
            ).check()
        assert list(Path(scratch_directory()).glob(f"{started.name}-*"))
        assert os.path.exists(records.path_of(started.name))
    assert not list(Path(scratch_directory()).glob(f"{started.name}-*"))
    assert not os.path.exists(records.path_of(started.name))
    assert started.name.encode() not in run_process(["ps", "-axo", "args="]).stdout


def test_nothing_is_left_if_owner_and_guard_are_killed(runtime: hr.Runtime, image: str) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        import hyperruntime as hr
        runtime = hr.open_runtime("apptainer")
        container = runtime.container(hr.ContainerSpec(image=sys.argv[1]))
        print(container.name, runtime._owner._guard.pid, flush=True)
        time.sleep(600)
        """
    )
    owner = spawn([sys.executable, "-W", "ignore", "-c", script, image])
    assert owner.stdout is not None
    name, guard = owner.stdout.readline().decode().split()
    os.kill(int(guard), 9)
    owner.kill()
    owner.communicate()
    assert wait_until(
        lambda: name.encode() not in run_process(["ps", "-axo", "args="]).stdout, 60, 0.2
    )
    assert wait_until(lambda: not os.path.exists(records.path_of(name)), 60)
    assert not list(Path(scratch_directory()).glob(f"{name}-*"))
    assert [path for path in runtime.prune() if name in path] == []


@pytest.mark.parametrize("kind", ["sif", "sandbox"])
def test_an_image_can_be_a_path(runtime: hr.Runtime, image: str, tmp_path: Path, kind: str) -> None:
    store = ApptainerDriver().images
    source = Path(store.source(image)[0])
    assert source.is_dir()
    if kind == "sif":
        (entry,) = (found for found in store._store.entries() if image in found.references)
        shutil.copy(entry.sif, tmp_path / "mine.sif")
    path = source if kind == "sandbox" else tmp_path / "mine.sif"
    with runtime.container(hr.ContainerSpec(image=str(path))) as started:
        started.exec(["touch", "/usr/new"]).check()
        assert started.exec(["python3", "-c", "print(6 * 7)"]).stdout == b"42\n"
    assert not (source / "usr/new").exists()


def test_a_saved_image_is_loaded_by_another_store_without_being_converted_again(
    runtime: hr.Runtime, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.images.save(image, tmp_path / "base.tar")
    (sif,) = (entry.sif for entry in Store().entries() if image in entry.references)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    with hr.open_runtime("apptainer") as other:
        assert other.images.load(tmp_path / "base.tar") == (image,)
        with other.container(hr.ContainerSpec(image=image)) as started:
            assert started.exec(["echo", "here"]).stdout == b"here\n"
    (copy,) = (tmp_path / "other").glob("images/*/image.sif")
    assert file_digest(copy) == file_digest(sif)  # a second conversion would have other times in it


def test_a_missing_apptainer_program_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match="no `apptainer` on PATH"):
        ApptainerDriver().probe()


def _holds(folder: Path, token: bytes) -> list[str]:
    """Return the readable files below a directory that contain a text."""
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [
        str(file)
        for file in files
        if file.is_file() and os.access(file, os.R_OK) and token in file.read_bytes()
    ]


@pytest.mark.parametrize("name", ["c.def", "Containerfile"])
def test_an_image_keeps_no_value_of_a_build_argument(
    runtime: hr.Runtime, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither in the stored definition file nor elsewhere; the steps see the value, and so did the
    build.
    """
    monkeypatch.setattr("hyperruntime_apptainer.build.BUILDERS", ())
    text = {
        "c.def": f"Bootstrap: localimage\nFrom: {image}\n%post\n echo {{{{ TOKEN }}}} | tr a-z A-Z "
        "> /seen\n",
        "Containerfile": f"FROM {image}\nARG TOKEN\nRUN echo $TOKEN | tr a-z A-Z > /seen\n",
    }[name]
    (tmp_path / name).write_text(text)
    runtime.images.build(
        BUILT, containerfile=tmp_path / name, build_args={"TOKEN": TOKEN}, force=True
    )
    try:
        entry = Store().find(BUILT)
        assert entry is not None
        assert TOKEN.encode() not in entry.sif.read_bytes()
        with runtime.container(hr.ContainerSpec(image=BUILT)) as container:
            assert container.exec(["cat", "/seen"]).stdout.decode() == f"{TOKEN.upper()}\n"
            stored = container.exec(
                ["cat", "/.singularity.d/bootstrap_history/Apptainer0"]
            ).stdout.decode()
            assert "{{ TOKEN }}" in stored
        assert not _holds(Store().unpacked(entry.id, entry.sif), TOKEN.encode())
    finally:
        runtime.images.remove(BUILT)


def _victim(folder: Path) -> Path:
    """Return a directory of the host with files of the names that Apptainer writes into an
    image.
    """
    victim = folder / "victim"
    (victim / "env").mkdir(parents=True)
    for name in ("runscript", "startscript", "labels.json", "Singularity", "env/90-environment.sh"):
        (victim / name).write_text("the host's own")
    return victim


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_loaded_image_writes_no_file_of_the_host_by_a_link(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    """Apptainer writes an image's metadata into ``/.singularity.d``, which this image has as a link
    to the host.
    """
    victim = _victim(tmp_path)
    before = _contents(victim)
    root, saved = tmp_path / "root", tmp_path / "saved"
    (root / "bin").mkdir(parents=True)
    (root / ".singularity.d").symlink_to(victim)
    saved.mkdir()
    assert (
        run_process(["tar", "-C", str(root), "-cf", str(saved / "layer.tar"), "."]).exit_code == 0
    )
    digest = hashlib.sha256((saved / "layer.tar").read_bytes()).hexdigest()
    layers = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["evil"]}, "rootfs": layers}
    (saved / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [BUILT], "Layers": ["layer.tar"]}]
    (saved / "manifest.json").write_text(json.dumps(manifest))
    names = ("manifest.json", "config.json", "layer.tar")
    assert (
        run_process(["tar", "-C", str(saved), "-cf", str(tmp_path / "saved.tar"), *names]).exit_code
        == 0
    )
    with pytest.raises(ImageError, match="read-only file system"):
        runtime.images.load(tmp_path / "saved.tar")
    assert _contents(victim) == before


def test_a_step_of_a_build_writes_no_file_of_the_host_by_a_link(
    runtime: hr.Runtime, image: str, tmp_path: Path
) -> None:
    victim = _victim(tmp_path)
    before = _contents(victim)
    (tmp_path / "c.def").write_text(
        f"Bootstrap: localimage\nFrom: {image}\n"
        f"%post\n cd /.singularity.d\n rm -rf runscript Singularity\n"
        f" ln -s {victim}/runscript {victim}/Singularity .\n%runscript\n evil\n"
    )
    with pytest.raises(ImageBuildError, match="read-only file system"):
        runtime.images.build(BUILT, containerfile=tmp_path / "c.def", force=True)
    assert _contents(victim) == before
