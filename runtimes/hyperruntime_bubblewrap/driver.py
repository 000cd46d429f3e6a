"""The bubblewrap driver: for machines with no container engine at all, and only for ordinary users."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Enforcement, Finding, Image, Launch, PostMortem
from hyperruntime.errors import (
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.images import BASE, PREFIX
from hyperruntime.process import ProcessResult, ProcessShell, find_program, run_process, spawn
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import IMAGE, MARK, NAME, refuse, run_args

NAMES = (IMAGE, f"{PREFIX}{BASE}:latest", f"{PREFIX}{BASE}")
NEEDED = ("git", "patch", "python3", "tar", "prlimit")
HINT = "install it, on Debian with `apt-get install bubblewrap`"


class HostImages:
    """One image, the host's own programs, which also serves as the base image: it must hold the same programs."""

    def exists(self, reference: str) -> bool:
        """Tell whether this is the host's own userland."""
        return reference == IMAGE or (reference in NAMES and all(map(find_program, NEEDED)))

    def list(self) -> tuple[Image, ...]:
        """Return the one image."""
        return (Image(id=IMAGE, references=tuple(n for n in NAMES[:2] if self.exists(n)), size_bytes=0, created=0.0),)

    def remove(self, reference: str) -> None:
        """Refuse."""
        self._refuse()

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Refuse."""
        self._refuse()

    def load(self, archive: Path) -> tuple[str, ...]:
        """Refuse."""
        self._refuse()

    def build(self, context: Path, reference: str, **options: object) -> str:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        why = f"it has one image, {IMAGE!r}, which is the host's own /usr; use another engine for images"
        raise UnsupportedOptionError(NAME, "image", why)


class BubblewrapContainer:
    """A container whose main process is the shell attached to ``bwrap``."""

    exec_env: Mapping[str, str] = {}

    def __init__(self, launch: Launch) -> None:
        """Start it; the shell answers a little later."""
        self.id, self._spec = launch.name, launch.spec
        try:
            self.shell = ProcessShell(spawn(run_args(launch, userland()), cwd="/", env={"PATH": os.defpath}))
        except OSError as error:
            allowed = "less text: environment, labels and mounts together are more than a command line holds"
            raise SpecError("env", "...", allowed) from error

    def observe(self) -> None:
        """Note nothing: there are no counters to look at."""

    def open_shell(self, user: str) -> ProcessShell:
        """Refuse any other user than root."""
        refuse(ContainerSpec(image=IMAGE, user=user), "rlimit")
        raise UnsupportedOptionError(NAME, "user", "execs run as root already; leave it at None")

    def post_mortem(self) -> PostMortem:
        """Return what is known of its end."""
        code = self.shell.wait(0.3)
        return PostMortem(state="running" if code is None else "exited", exit_code=code)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered."""
        if "Can't chdir to" in error_text:
            return SpecError("workdir", self._spec.workdir, "a directory that exists in the image or in a mount")
        return EngineUnavailableError(NAME, error_text.strip() or "its shell never answered", "see `hyperrun doctor`")

    def remove(self) -> None:
        """End it; nothing of it is on disk."""
        self.shell.close()


class BubblewrapDriver:
    """Adapter for bubblewrap 0.8 and newer."""

    name = NAME

    def __init__(self) -> None:
        """Start and read nothing."""
        self._info: EngineInfo | None = None
        self.images = HostImages()

    def open(self, private_dir: str) -> None:
        """Need nothing of it."""

    def probe(self) -> EngineInfo:
        """Run a container once, and see whether a limit on processes holds in it."""
        if self._info is None:
            version, pids = probe()
            limits = {"memory_bytes": "no", "cpus": "no", "pids": pids, "tmpfs_bytes": "cgroup"}
            self._info = EngineInfo(
                engine=NAME, version=version, rootless=True, networks=("none", "host"), limits=limits, users=False
            )
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Probe anew and say what was found."""
        try:
            version, pids = probe()
        except EngineUnavailableError as error:
            return (Finding(subject=NAME, ok=False, detail=error.why, next_step=error.next_step),)
        return (Finding(subject=NAME, ok=True, detail=f"{version}; limit on processes: {pids}; on memory, cpus: no"),)

    def launch(self, launch: Launch) -> BubblewrapContainer:
        """Start a container with its shell attached."""
        refuse(launch.spec, self.probe().limits["pids"])
        if not self.images.exists(launch.spec.image):
            raise ImageNotFoundError(launch.spec.image, f"bubblewrap has one image, {IMAGE!r}: use that")
        for mount in launch.spec.mounts:
            if not os.path.exists(mount.source):
                raise SpecError("Mount.source", mount.source, "a path that exists on this machine")
        return BubblewrapContainer(launch)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers: their keepers tell who they are."""
        return tuple(record for _, record in keepers())

    def remove_container(self, container_id: str) -> None:
        """End a container."""
        for process, record in keepers():
            if record.id == container_id:
                process.kill()
                psutil.wait_procs([process], 10)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return what removes every container with a label."""
        return (sys.executable or "python3", "-m", "hyperruntime_bubblewrap", label)

    def close(self) -> None:
        """Have nothing to end."""


def keepers() -> Iterator[tuple[psutil.Process, ContainerRecord]]:
    """Yield the process that keeps each container of this user, and what its arguments say of the container."""
    for process in psutil.process_iter():
        try:
            args = process.cmdline()
            if args[3:4] == [MARK] and process.uids().real == os.getuid():
                facts = json.loads(args[5])
                state = ContainerRecord(id=args[4], state="running", created=process.create_time(), **facts)
                yield process, state
        except (psutil.Error, ValueError, TypeError, IndexError):
            continue


def userland() -> list[str]:
    """Return the arguments that show the host's own programs, and nothing else of it."""
    args = ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")):
        if path.is_symlink():
            args += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            args += ["--ro-bind", str(path), str(path)]
    for path in ("/usr/local/etc", "/usr/etc"):
        args += ["--tmpfs", path] if os.path.isdir(path) else []
    return args


def probe() -> tuple[str, Enforcement]:
    """Return bubblewrap's version and how a limit on processes is enforced.

    Raises:
        EngineUnavailableError: it is missing, cannot run a container, or would run it with root's power.
    """
    if os.geteuid() == 0:
        why = "for root a container of it would hold root's power over this machine"
        raise EngineUnavailableError(NAME, why, "run as an ordinary user, or use Podman or Docker")
    for program in ("bwrap", "prlimit"):
        if find_program(program) is None:
            raise EngineUnavailableError(NAME, f"there is no `{program}` on PATH", HINT)
    free, limited = (_try(Limits(pids=pids)) for pids in (None, 16))
    if b"works" not in free.stdout:
        step = "allow user namespaces: sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns"
        raise EngineUnavailableError(NAME, f"no container runs: {free.error_text}", step)
    version = run_process(["bwrap", "--version"]).stdout.decode().split()[-1]
    return version, "rlimit" if b"works" in limited.stdout and b"unlimited" not in limited.stdout else "no"


def _try(limits: Limits) -> ProcessResult:
    spec = ContainerSpec(image=IMAGE, limits=limits)
    exchange = Mount(source="/usr", target="/mnt")
    launch = Launch(spec=spec, name="hyperruntime-probe", labels={}, exchange=exchange, private_dir="")
    script = b"echo works; n=0; while [ $n -lt 20 ]; do sleep 1 & n=$((n+1)); done; echo unlimited; kill -9 -1\n"
    return run_process(run_args(launch, userland()), input=script, timeout_s=10, cwd="/", env={"PATH": os.defpath})


_: type[Driver] = BubblewrapDriver
