"""A driver for tests without an engine: it runs the host's userland in namespaces made by
util-linux.

It needs no installation, keeps every promise of a driver, and declares what it refuses. It finds
its containers in the process list of the machine.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import attrs
import psutil

from hyperruntime.driver import (
    ContainerRecord,
    Driver,
    Enforcement,
    EngineInfo,
    Finding,
    Image,
    Launch,
)
from hyperruntime.errors import (
    EngineUnavailableError,
    ImageNotFoundError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.host.engine_driver import ShellContainer
from hyperruntime.host.engine_program import IMAGE_OPERATIONS, refused_images
from hyperruntime.host.inherited import process_ceiling, stricter
from hyperruntime.host.process import (
    ProcessShell,
    find_program,
    kill_group,
    python_args,
    run_process,
    spawn_attached,
)
from hyperruntime.spec import ContainerSpec, Mount

NAME = "fake"
IMAGE = "localhost/hyperruntime/base:latest"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WHY = "the fake driver does not support it"
_MARK = "hyperruntime-fake"
_PROGRAMS = ("unshare", "setpriv", "prlimit", "mount")
# Where the program does not exist, as in Debian unstable.
_PIVOT_ROOT = "import ctypes, sys; sys.exit(-ctypes.CDLL(None).pivot_root(b'.', b'old'))"
_FORKS = b"echo up; i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i + 1)); done; echo unlimited\n"
_CLEANUP = """
for process in /proc/[0-9]*; do
    read -r name 2>/dev/null <"$process/comm" && [ "$name" = unshare ] || continue
    grep -qF -- "$1" "$process/cmdline" && kill -KILL "${process#/proc/}"
done
exit 0
"""


def unshare_args(launch: Launch, created: float) -> list[str]:
    """Return the argv that makes a container; it also stores the container's record.

    Args:
        launch: the container to make.
        created: time of creation, in seconds since the epoch.

    Source: unshare(1).
    """
    spec = launch.spec
    namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts"]
    network = ["--net"] if spec.network == "none" else []
    script = resources.files("hyperruntime.testing").joinpath("container.sh").read_text()
    tmp = "" if spec.limits.tmpfs_bytes is None else f",size={spec.limits.tmpfs_bytes}"
    shm = "" if spec.limits.shm_bytes is None else str(spec.limits.shm_bytes)
    frozen = "frozen" if spec.read_only_rootfs else ""
    processes = (
        "" if spec.limits.pids is None else str(stricter(spec.limits.pids, process_ceiling()))
    )
    identity = [launch.name, spec.image, repr(created), json.dumps(dict(launch.labels))]
    settings = [f"{launch.private_dir}/root", spec.workdir or "/", tmp, frozen, processes, shm]
    mounts = [word for mount in (launch.exchange, *spec.mounts) for word in _mount_words(mount)]
    return [
        *(
            "unshare",
            *namespaces,
            *network,
            "--fork",
            "--kill-child",
            "/bin/sh",
            "-c",
            f"shift 4\n{script}",
            _MARK,
        ),
        *(*identity, *settings, *mounts),
    ]


def unshare_env(launch: Launch) -> dict[str, str]:
    """Return the environment of :func:`unshare_args`; it has the container's environment, quoted
    for a shell.
    """
    env = {"PATH": PATH, "HOME": "/root", **launch.spec.env}
    pivot: tuple[str, ...] = ("pivot_root", ".", "old")
    if not _finds(pivot[0]):
        pivot = python_args("-I", "-S", "-c", _PIVOT_ROOT)
    return {
        "PATH": PATH,
        "PIVOT_ROOT": shlex.join(pivot),
        "CONTAINER_ENV": shlex.join(f"{name}={value}" for name, value in env.items()),
    }


def _finds(program: str) -> bool:
    return find_program(program) is not None or Path("/usr/sbin", program).exists()


def _mount_words(mount: Mount) -> tuple[str, str, str]:
    return ("ro" if mount.read_only else "rw", os.path.abspath(mount.source), mount.target)


class FakeLiveContainer(ShellContainer):
    """A process tree in its own namespaces."""

    def __init__(self, launch: Launch) -> None:
        """Start the container."""
        self.id = launch.name
        self._launch = launch
        Path(launch.private_dir, "root").mkdir(parents=True, exist_ok=True)
        self._process = spawn_attached(unshare_args(launch, time.time()), unshare_env(launch))
        self.shell = ProcessShell(self._process)

    def explain_start_failure(self, error_text: str, *_: object) -> Exception:
        """Return the error for a shell that never answered."""
        if "no workdir" in error_text:
            return SpecError(
                "workdir", self._launch.spec.workdir, "a directory that exists in the container"
            )
        lines = error_text.strip().splitlines() or ["its shell never answered"]
        return EngineUnavailableError(NAME, lines[-1], "it needs user namespaces and util-linux")

    def remove(self) -> None:
        """Kill the container; the kernel ends all processes of its pid namespace."""
        kill_group(self._process)
        self._process.wait()


class FakeDriverImages:
    """One image, the host's userland; every change of images is refused."""

    def exists(self, reference: str) -> bool:
        """Return whether the reference is that image."""
        return reference == IMAGE

    def list(self) -> tuple[Image, ...]:
        """Return that image."""
        return (Image(id="host", references=(IMAGE,), size_bytes=0, created=0.0),)

    remove, load_rootfs, load, save, pull, build = refused_images(NAME, _WHY)


class FakeDriver:
    """The driver without an engine."""

    name = NAME

    _info: EngineInfo | None = None

    @property
    def images(self) -> FakeDriverImages:
        """The one image."""
        return FakeDriverImages()

    def open(self, private_dir: str) -> None:
        """Do nothing: the driver needs no files of its own."""

    def probe(self) -> EngineInfo:
        """Return what the driver can do here; the first call runs a container that exceeds its
        process limit.

        Raises:
            EngineUnavailableError: a container cannot run.
        """
        if self._info is None:
            self._info = EngineInfo(
                engine=NAME,
                version="1",
                rootless=os.geteuid() != 0,
                networks=("none", "host"),
                limits={
                    "memory_bytes": "no",
                    "cpus": "no",
                    "pids": _try_processes(),
                    "shm_bytes": "cgroup",
                },
                users=False,
                unfiltered="it sets no filter",
                refuses=frozenset(("user", *IMAGE_OPERATIONS)),
            )
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Return one finding: whether containers run."""
        try:
            self.probe()
        except EngineUnavailableError as error:
            return (
                Finding(
                    subject="namespaces", ok=False, detail=error.why, next_step=error.next_step
                ),
            )
        return (Finding(subject="namespaces", ok=True, detail="containers run"),)

    def launch(self, launch: Launch) -> FakeLiveContainer:
        """Start a container.

        Raises:
            UnsupportedOptionError: the spec has a field that this driver refuses.
            ImageNotFoundError: the image is not the one image of this driver.
            SpecError: the source of a mount does not exist.
        """
        self.refuse(launch.spec)
        if launch.spec.image != IMAGE:
            raise ImageNotFoundError(launch.spec.image, f"the fake driver only has {IMAGE}")
        for mount in launch.spec.mounts:
            if not Path(mount.source).exists():
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        return FakeLiveContainer(launch)

    def refuse(self, spec: ContainerSpec) -> None:
        """Check a spec.

        Raises:
            UnsupportedOptionError: the spec has a field that this driver refuses.
        """
        info = self.probe()
        for field in ("memory_bytes", "cpus", "pids"):
            if getattr(spec.limits, field) is not None and info.limits[field] == "no":
                raise _unsupported(f"limits.{field}")
        if spec.network not in info.networks:
            raise _unsupported("network")
        for field in ("gpus", "user"):
            if getattr(spec, field) is not None:
                raise _unsupported(field)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers."""
        return tuple({record.id: record for _, record in _running()}.values())

    def remove_container(self, container_id: str) -> None:
        """Kill the process that made a container; the kernel ends the others."""
        for pid, record in _running():
            if record.id == container_id:
                os.kill(pid, 9)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv of a command that kills every container with a label, ``name=value``."""
        name, _, value = label.partition("=")
        return ("/bin/sh", "-c", _CLEANUP, "cleanup", json.dumps({name: value}).strip("{}"))

    def close(self) -> None:
        """Do nothing."""


def _unsupported(field: str) -> UnsupportedOptionError:
    return UnsupportedOptionError(NAME, field, _WHY)


def _try_processes() -> Enforcement:
    """Try a limit of processes; return how it is enforced (Linux exempts root of the host from
    RLIMIT_NPROC).

    Raises:
        EngineUnavailableError: a container cannot run.
    """
    missing = [name for name in _PROGRAMS if not _finds(name)]
    if missing:
        raise EngineUnavailableError(
            NAME, f"{missing[0]} is missing", "install util-linux and mount"
        )
    with resources.as_file(resources.files("hyperruntime.testing")) as here:
        exchange = Mount(source=str(here), target="/run/hyperruntime")
        with tempfile.TemporaryDirectory(prefix="hyperruntime-fake-") as directory:
            Path(directory, "root").mkdir()
            spec = ContainerSpec(image=IMAGE)
            spec = attrs.evolve(spec, limits=attrs.evolve(spec.limits, pids=20))
            launch = Launch(
                spec=spec, name="probe", labels={}, exchange=exchange, private_dir=directory
            )
            done = run_process(
                unshare_args(launch, 0.0),
                input=_FORKS,
                timeout_s=60,
                cwd="/",
                env=unshare_env(launch),
            )
    if not done.stdout.startswith(b"up"):
        raise EngineUnavailableError(NAME, done.error_text, "allow user namespaces")
    return "no" if b"unlimited" in done.stdout else "rlimit"


def _running() -> Iterator[tuple[int, ContainerRecord]]:
    """Yield the pid of each process of this user that made a container, with the container's
    record.
    """
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if (
                _MARK in words
                and process.name() == "unshare"
                and process.uids().real == os.getuid()
            ):
                yield process.pid, _record(words[words.index(_MARK) + 1 :])
        except (psutil.Error, ValueError):
            continue


def _record(words: list[str]) -> ContainerRecord:
    name, image, created, labels = words[:4]
    return ContainerRecord(
        id=name, image=image, state="running", created=float(created), labels=json.loads(labels)
    )


_: type[Driver] = FakeDriver
