"""Apptainer: its writable layer, isolation from the host, images by path, and the processes of one
container.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import EngineUnavailableError, ImageBuildError
from hyperruntime.host.process import run_process, spawn, wait_until
from hyperruntime.host.temporary import scratch_directory
from hyperruntime.layers.owners import has_all_ids
from hyperruntime.layers.records import Records, processes_of
from hyperruntime.layers.store import VARIABLE, Store
from hyperruntime_apptainer import ApptainerDriver
from hyperruntime_apptainer.probe import probe
from tests.contract.builds import built
from tests.doubles.layers import docker_archive
from tests.processes import command_line
from tests.registry import busybox_layer, run_registry
from tests.trees import shown_inside

pytestmark = pytest.mark.engine
MIB = 1024**2
BUILT = "localhost/hyperruntime-test/attack:latest"
TOKEN = "tok-5f2c-never-kept"

RECORDS = Records("apptainer")


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


def test_directories_of_an_image_are_removed_and_made_again(runtime: hr.Runtime) -> None:
    """Apptainer's own overlay lacks ``userxattr`` in a user namespace: Input/output error."""
    script = (
        "rm -r /usr/share/base-files && mkdir /usr/share/base-files && ls /usr/share/base-files"
    )
    with runtime.container(hr.ContainerSpec(image=runtime.images.ensure("base"))) as container:
        result = container.exec(["sh", "-c", script])
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")


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
        files = next(record.files for record in RECORDS.read_all() if record.name == started.name)
        limits = {
            process.pid: limit_on_processes(Path(f"/proc/{process.pid}/limits").read_text())
            for process in processes_of(files)
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
        assert os.path.exists(RECORDS.path_of(started.name))
    assert not os.path.exists(RECORDS.path_of(started.name))
    # the holder removes them
    assert wait_until(lambda: not list(Path(scratch_directory()).glob(f"{started.name}-*")), 60)
    assert wait_until(lambda: not list(RECORDS.directory.glob(f"{started.name}*")), 60)
    assert started.name.encode() not in run_process(["ps", "-axo", "args="]).stdout


def test_all_processes_end_with_a_container_that_is_killed(runtime: hr.Runtime, image: str) -> None:
    """Also a shell that is stopped, and Apptainer's own, which forget the parent-death signal."""
    with runtime.container(hr.ContainerSpec(image=image)) as started:
        files = next(record.files for record in RECORDS.read_all() if record.name == started.name)
        processes = processes_of(files)
        assert len(processes) >= 4, "unshare, a shell, Apptainer, the main shell"
        for process in processes:
            if process.cmdline() == ["/bin/sh"]:
                process.suspend()
        started._live.remove()
        assert wait_until(lambda: not any(process.is_running() for process in processes), 60)


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
    assert wait_until(lambda: not list(RECORDS.directory.glob(f"{name}*")), 60)
    assert not list(Path(scratch_directory()).glob(f"{name}-*"))
    assert [path for path in runtime.prune() if name in path] == []


@pytest.mark.parametrize("kind", ["sif", "sandbox"])
def test_an_image_can_be_a_path(runtime: hr.Runtime, image: str, tmp_path: Path, kind: str) -> None:
    source = Path(ApptainerDriver().images.source(image).files)
    assert source.is_dir()
    if kind == "sif":
        fast = ("--mksquashfs-args", "-comp gzip -Xcompression-level 1")
        made = run_process(["apptainer", "build", *fast, str(tmp_path / "mine.sif"), str(source)])
        assert made.exit_code == 0, made.error_text
    path = source if kind == "sandbox" else tmp_path / "mine.sif"
    with runtime.container(hr.ContainerSpec(image=str(path))) as started:
        started.exec(["touch", "/usr/new"]).check()
        assert started.exec(["python3", "-c", "print(6 * 7)"]).stdout == b"42\n"
    assert not (source / "usr/new").exists()


def test_a_saved_image_is_loaded_by_another_store(
    runtime: hr.Runtime, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.images.save(image, tmp_path / "base.tar")
    tree = ApptainerDriver().images.source(image).files
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    with hr.open_runtime("apptainer") as other:
        assert other.images.load(tmp_path / "base.tar") == (image,)
        with other.container(hr.ContainerSpec(image=image)) as started:
            assert started.exec(["echo", "here"]).stdout == b"here\n"
    copy = ApptainerDriver().images.source(image).files
    assert copy.startswith(str(tmp_path))
    try:
        assert shown_inside(copy) == shown_inside(tree)
    finally:  # files of other users, which pytest cannot remove
        ApptainerDriver().images.remove(image)


def test_variables_and_the_working_directory_of_an_archive_are_kept(
    runtime: hr.Runtime, tmp_path: Path
) -> None:
    value = "x y'$z\"`q`\\"
    own: dict[str, Any] = {"Env": [f"A={value}", "PATH=/bin:/own"], "WorkingDir": "/greetings"}
    archive = docker_archive(tmp_path / "a.tar", busybox_layer("hello"), name=BUILT, **own)
    assert runtime.images.load(archive) == (BUILT,)
    try:
        with runtime.container(hr.ContainerSpec(image=BUILT)) as started:
            script = 'echo "$A"; echo "$PATH"; pwd'
            found, path, workdir = (
                started.exec(["sh", "-c", script]).check().stdout.decode().splitlines()
            )
        assert (found, workdir) == (value, "/greetings")
        # Apptainer appends the usual directories that are missing, as it does for images of its own
        assert path.startswith("/bin:/own:/usr/local/sbin:")
    finally:
        runtime.images.remove(BUILT)


def test_the_probe_finds_users_whatever_the_umask_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0o077)
    try:
        found = probe()
    finally:
        os.umask(before)
    assert found.settings.users == has_all_ids()


def test_a_missing_apptainer_program_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match="no `apptainer` and no `singularity` on PATH"):
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
    runtime: hr.Runtime, image: str, tmp_path: Path, name: str
) -> None:
    """The steps see the value, and so did the build."""
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
        with runtime.container(hr.ContainerSpec(image=BUILT)) as container:
            assert container.exec(["cat", "/seen"]).stdout.decode() == f"{TOKEN.upper()}\n"
        assert not _holds(Store().tree(entry), TOKEN.encode())
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
    """The image's variables are written below ``/.singularity.d``, which this image has as a link
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
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]}, "rootfs": layers}
    (saved / "config.json").write_text(json.dumps(config))
    manifest = [{"Config": "config.json", "RepoTags": [BUILT], "Layers": ["layer.tar"]}]
    (saved / "manifest.json").write_text(json.dumps(manifest))
    names = ("manifest.json", "config.json", "layer.tar")
    assert (
        run_process(["tar", "-C", str(saved), "-cf", str(tmp_path / "saved.tar"), *names]).exit_code
        == 0
    )
    runtime.images.load(tmp_path / "saved.tar")
    runtime.images.remove(BUILT)
    assert _contents(victim) == before


def test_a_step_of_a_build_writes_no_file_of_the_host_by_a_link(
    runtime: hr.Runtime, image: str, tmp_path: Path
) -> None:
    victim = _victim(tmp_path)
    before = _contents(victim)
    (tmp_path / "c.def").write_text(
        f"Bootstrap: localimage\nFrom: {image}\n"
        f"%post\n mkdir -p /.singularity.d\n cd /.singularity.d\n rm -rf runscript\n"
        f" ln -s {victim}/runscript {victim}/Singularity .\n%runscript\n evil\n"
    )
    with pytest.raises(ImageBuildError, match="runscript"):
        runtime.images.build(BUILT, containerfile=tmp_path / "c.def", force=True)
    assert _contents(victim) == before


def test_scripts_set_the_environment_of_an_image(
    runtime: hr.Runtime, image: str, tmp_path: Path
) -> None:
    """Only Apptainer sources a script before each command."""
    (tmp_path / "c.def").write_text(
        f"Bootstrap: localimage\nFrom: {image}\n"
        "%environment\n if true; then export A=$(echo a); fi\n"
        "%post\n echo 'export B=b' >> $APPTAINER_ENVIRONMENT\n"
        "%test\n test $A = a\n"
    )
    with built(runtime, BUILT, tmp_path / "c.def") as container:
        assert container.exec(["sh", "-c", "echo $A $B"]).stdout == b"a b\n"


@pytest.mark.parametrize("kind", ["localimage", "oras"])
def test_a_definition_begins_with_a_sif(runtime: hr.Runtime, tmp_path: Path, kind: str) -> None:
    """The triggers of a SIF, which only an attacker writes, do not run: they could copy another."""
    tree = tmp_path / "tree"
    tree.mkdir()
    run_process(["tar", "-xC", str(tree)], input=busybox_layer("hello"))
    sif = str(tmp_path / "mine.sif")
    assert run_process(["apptainer", "build", sif, str(tree)]).exit_code == 0
    config = {"Env": ["ONE=1"], "OnBuild": [f"COPY --from={sif} / /copied", "RUN touch /ran"]}
    (tmp_path / "config").write_text(json.dumps(config))
    add = ["apptainer", "sif", "add", "--datatype", "6", sif, str(tmp_path / "config")]
    added = run_process(add)
    assert added.exit_code == 0, added.error_text
    base = "./mine.sif"
    with ExitStack() as stack:
        if kind == "oras":
            registry = stack.enter_context(run_registry(tmp_path / "registry"))
            base = f"{registry.address}/some/image:1"
            pushed = run_process(["apptainer", "push", "--no-https", sif, f"oras://{base}"])
            assert pushed.exit_code == 0, pushed.error_text
        text = f"Bootstrap: {kind}\nFrom: {base}\n%post\n cat /greeting > /x\n"
        (tmp_path / "c.def").write_text(text)
        with built(runtime, BUILT, tmp_path / "c.def") as container:
            assert container.exec(["cat", "/x"]).stdout == b"hello"
            shown = container.exec(["sh", "-c", "echo $ONE; ls -d /copied /ran"])
        assert shown.stdout == b"1\n", shown
