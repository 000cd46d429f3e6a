"""A driver for runc alone, as root or as an ordinary user; docs/writing-a-driver.md explains it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import platformdirs
import psutil

from hyperruntime.driver import ContainerRecord, Driver, EngineInfo, Finding, Image, Launch
from hyperruntime.errors import (
    EngineError,
    EngineUnavailableError,
    ImageNotFoundError,
    UnsupportedOptionError,
)
from hyperruntime.host import engine_program as common
from hyperruntime.host.engine_driver import ShellContainer, removal_args
from hyperruntime.host.engine_findings import failure_finding
from hyperruntime.host.inherited import (
    is_own_directory,
    own_runtime_directory,
    process_ceiling,
    stricter,
)
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import (
    ProcessResult,
    ProcessShell,
    last_line,
    run_process,
    spawn_attached,
    wait_until,
)
from hyperruntime.host.seccomp import filter_profile
from hyperruntime.spec import ContainerSpec, Limits, Mount

NAME, LIMITS = "runc", ("memory_bytes", "cpus", "pids")
PATH, TMP = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "/tmp"
SHM = "/dev/shm"
ENV = {"PATH": PATH}  # of our programs; this process's own environment stays out
ROOTLESS = os.geteuid() != 0
# An ordinary user becomes root of a user namespace, in which the subordinate ids are the other
# users.
AS_ROOT = ["unshare", *common.ALL_IDS] if ROOTLESS else []
# Mounts in a mount namespace of its own: the host sees none below the private directory. When the
# container has ended, in any way, the keeper removes its files: some belong to other users, and
# only root of the namespace may. It survives the SIGTERM that a batch system sends to all processes
# of a job.
KEEPER = """trap : TERM
cd "$1" && mount -t overlay overlay -o lowerdir=image,upperdir=upper,workdir=work root || exit 1
runc --root "$2" run --bundle . "$3"; code=$?
umount root; rm -rf root upper work; exit $code"""
# PID 1: a shell that waits for its child reaps every orphan too.
INIT = ["/bin/sh", "-c", '"$@"; exit $?', "init"]
TRIAL = f"""{common.SHOW_LIMITS}{common.TRY_USERS}
{{ for n in $(seq 150); do sleep 600& done; echo unlimited; }} 2>&1 | {{ read s; echo first $s; kill -9 -1; }}
"""
LIST_TRIES, INSTALL = 20, "install runc"
NO_BUILD = "it has no builder: make the image with another engine, and load its files"


def config(
    launch: Launch, limits: Mapping[str, str], template: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a container: pure, no I/O. Source: OCI runtime specification
    1.0.2.

    Args:
        launch: the container.
        limits: how each limit is enforced here.
        template: what ``runc spec`` writes.
    """
    spec, by_cgroup = launch.spec, limits["pids"] == "cgroup"
    rights = [f"CAP_{name}" for name in common.CAPABILITIES]
    process: dict[str, Any] = {
        "user": {"uid": 0, "gid": 0},
        "cwd": "/",  # runc makes a missing directory, so a shell changes into it
        "args": [*INIT, *common.shell_args(spec.workdir or "/")],
        "env": [f"PATH={PATH}", "HOME=/root"],
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), rights),
        "noNewPrivileges": True,
    }
    if spec.limits.pids is not None and not by_cgroup:
        count = stricter(spec.limits.pids, process_ceiling())
        process["rlimits"] = [{"type": "RLIMIT_NPROC", "soft": count, "hard": count}]
    kinds = ("pid", "ipc", "uts", "mount", *(["network"] * (spec.network == "none")))
    linux = {
        **template["linux"],
        "namespaces": [{"type": kind} for kind in kinds],
        "resources": {**template["linux"]["resources"], **resources(spec.limits, by_cgroup)},
        "seccomp": json.loads(filter_profile()),
    }
    record = json.dumps({"image": spec.image, "labels": dict(launch.labels)})
    root = {"path": "root", "readonly": spec.read_only_rootfs}
    parts = {"process": process, "root": root, "linux": linux, "annotations": {NAME: record}}
    return {
        **template,
        **parts,
        "hostname": launch.name,
        "mounts": mounts(launch, template["mounts"]),
    }


def resources(limits: Limits, by_cgroup: bool) -> dict[str, Any]:
    """Return the limits of the cgroup; ``by_cgroup`` says whether it limits processes."""
    found: dict[str, Any] = {}
    if limits.memory_bytes is not None:
        found["memory"] = {"limit": limits.memory_bytes, "swap": limits.memory_bytes}
    if limits.cpus is not None:
        found["cpu"] = {"period": 100_000, "quota": round(limits.cpus * 100_000)}
    if limits.pids is not None and by_cgroup:
        found["pids"] = {"limit": limits.pids}
    return found


def mounts(launch: Launch, usual: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return all mounts; ``/sys`` needs the host's root, or a network of the container's own."""
    spec, size = launch.spec, launch.spec.limits.tmpfs_bytes
    found = [mount for mount in usual if not (ROOTLESS and mount["destination"].startswith("/sys"))]
    if size is not None or common.needs_own_tmp(spec):
        options = ["nosuid", "nodev", "mode=1777", *([] if size is None else [f"size={size}"])]
        found.append({"destination": TMP, "type": "tmpfs", "source": "tmpfs", "options": options})
    if spec.limits.shm_bytes is not None:
        options = ["nosuid", "nodev", "noexec", "mode=1777", f"size={spec.limits.shm_bytes}"]
        found = [mount for mount in found if mount["destination"] != SHM]
        found.append({"destination": SHM, "type": "tmpfs", "source": "shm", "options": options})
    return [*found, *map(bind, (launch.exchange, *spec.mounts))]


def bind(mount: Mount) -> dict[str, Any]:
    """Return a mount of a host path; ``rro``: what is mounted below it is read-only too."""
    options = ["rbind", "nosuid", "nodev", *(["ro", "rro"] * mount.read_only)]
    return {
        "destination": mount.target,
        "type": "bind",
        "source": os.path.abspath(mount.source),
        "options": options,
    }


@cache
def template() -> dict[str, Any]:
    """Return runc's own example of a configuration."""
    with owned_directory() as place, common.program_needed(NAME, "runc", INSTALL):
        run_process(["runc", "spec", "--bundle", place], env=ENV)
        found: dict[str, Any] = json.loads(Path(place, "config.json").read_text())
        return found


def state() -> str:
    """Return the directory of runc's records of this user's containers, the same for all processes
    of the user.
    """
    path = f"{own_runtime_directory(os.environ) or TMP}/hyperruntime-runc-{os.geteuid()}"
    os.makedirs(path, 0o700, exist_ok=True)
    if not is_own_directory(path):
        raise EngineUnavailableError(NAME, f"{path} belongs to another user", "set XDG_RUNTIME_DIR")
    return path


def start(launch: Launch, root: Path, limits: Mapping[str, str]) -> list[str]:
    """Write a container's files; return the argv that starts it from the root file system of an
    image.
    """
    bundle = Path(launch.private_dir, "runc")
    for name in ("root", "upper", "work"):
        (bundle / name).mkdir(parents=True)
    # mount options cannot hold every path, so they are relative
    (bundle / "image").symlink_to(root)
    (bundle / "config.json").write_text(json.dumps(config(launch, limits, template())))
    return [
        *(AS_ROOT or ["unshare"]),
        "--mount",
        "/bin/sh",
        "-c",
        KEEPER,
        "keeper",
        str(bundle),
        state(),
        launch.name,
    ]


class RuncImages:
    """This user's images: directories with a root file system, named by their quoted references."""

    _, _, load, save, pull, build = common.refused_images(NAME, NO_BUILD)

    def path(self, reference: str) -> Path:
        """Return where an image is or would be; not in the cache, which may be emptied at any
        time.
        """
        return (
            platformdirs.user_data_path("hyperruntime-runc") / f"{quote(reference, safe='')}.image"
        )

    def exists(self, reference: str) -> bool:
        """Return whether there is an image with exactly this reference."""
        return self.path(reference).is_dir()

    def list(self) -> tuple[Image, ...]:
        """Return all images; to measure them would take too long."""
        found = {
            unquote(path.stem): path.stat().st_mtime
            for path in self.path("").parent.glob("*.image")
        }
        return tuple(
            Image(id=name, references=(name,), size_bytes=0, created=time)
            for name, time in found.items()
        )

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Unpack the root file system; it appears only when it is complete."""
        path = self.path(reference)
        partial = path.with_name(f"{os.getpid()}.partial")
        partial.mkdir(parents=True)
        extract = [
            "tar",
            "--extract",
            "--numeric-owner",
            "--exclude=./dev/*",
            "--file",
            str(tar),
            "-C",
            str(partial),
        ]
        done = run_process([*AS_ROOT, *extract], env=ENV)
        if done.exit_code == 0 and self.exists(reference):
            self.remove(reference)
        if done.exit_code == 0:
            partial.rename(path)
            return reference
        run_process([*AS_ROOT, "rm", "-rf", str(partial)], env=ENV)
        raise EngineError(
            f"{tar} cannot be unpacked: {done.error_text}; free space below {path.parent}"
        )

    def remove(self, reference: str) -> None:
        """Remove an image that no container uses."""
        if not self.exists(reference):
            raise ImageNotFoundError(reference, "`hyperrun image list` shows what there is")
        if used := [record.id for record in records() if record.image == reference]:
            raise EngineError(f"container {used[0]} uses {reference}; close it first")
        run_process([*AS_ROOT, "rm", "-rf", str(self.path(reference))], env=ENV)


class RuncContainer(ShellContainer):
    """A container whose main process is the shell attached to ``runc run``."""

    def __init__(self, launch: Launch, args: Sequence[str]) -> None:
        """Start it, without waiting for its shell to answer."""
        self.id, self._launch = launch.name, launch
        # the mount's own options name it by a relative path
        self.layer = f"{launch.private_dir}/runc/upper"
        with common.program_needed(NAME, "unshare", "install util-linux"):
            self.shell = ProcessShell(spawn_attached(args, ENV))

    def explain_start_failure(self, error_text: str, user: str | None = None) -> Exception:
        """Return the error that says why the shell never answered."""
        said, full = (
            last_line(error_text),
            f"{self._launch.private_dir} has no space left; free space there",
        )
        known = common.start_refusal(error_text, self._launch.spec, user, full)
        return known or common.unknown_failure(NAME, said, self.shell)

    def remove(self) -> None:
        """Kill it; a container that is only just starting reads end-of-file."""
        self.shell.close_input()
        remove(self.id)


class RuncDriver:
    """Driver for runc 1.1 and newer."""

    name, images = NAME, RuncImages()
    _info: EngineInfo | None = None

    def open(self, private_dir: str) -> None:
        """Do nothing: each container has its own directory."""

    def probe(self) -> EngineInfo:
        """Return what runc can do here; only the first call tries."""
        self._info = self._info or try_here()
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Try again; never raise."""
        try:
            info = try_here()
        except EngineUnavailableError as error:
            return (failure_finding(NAME, error),)
        return (
            Finding(subject=NAME, ok=True, detail=f"{info.version}; limits: {dict(info.limits)}"),
        )

    def launch(self, launch: Launch) -> RuncContainer:
        """Start a container with its shell attached."""
        info = self.probe()
        refuse(launch.spec, info)
        if not self.images.exists(launch.spec.image):
            raise ImageNotFoundError(launch.spec.image, "load its root file system")
        return RuncContainer(
            launch, start(launch, self.images.path(launch.spec.image), info.limits)
        )

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return the containers of all owners."""
        return records()

    def remove_container(self, container_id: str) -> None:
        """Kill a container, and wait until its files are gone."""
        remove(container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label."""
        return removal_args(self, label)

    def close(self) -> None:
        """Do nothing: there is no service."""


def refuse(spec: ContainerSpec, info: EngineInfo) -> None:
    """Raise for each field that cannot be honoured, under the name that ``info`` declares."""
    unlimited = {
        f"limits.{name}": info.limits[name] == "no" and getattr(spec.limits, name)
        for name in LIMITS
    }
    others = {"network": spec.network not in info.networks, "gpus": spec.gpus is not None}
    user = {"user": spec.user not in (None, "root", "0", "0:0")}
    for field, wanted in {**unlimited, **others, **user}.items():
        if wanted:
            why = (
                common.ONLY_ROOT_USER
                if field == "user"
                else "runc has no such thing here; leave it at its default"
            )
            raise UnsupportedOptionError(NAME, field, why)


def run_runc(*args: str) -> ProcessResult:
    """Run a command of runc."""
    with common.program_needed(NAME, "runc", INSTALL):
        return run_process(["runc", "--root", state(), *args], env=ENV)


def records() -> tuple[ContainerRecord, ...]:
    """Return the containers that runc lists."""
    done = run_runc("list", "--format", "json")
    for _ in range(LIST_TRIES):  # it fails if a container ends meanwhile
        if done.exit_code == 0:
            break
        done = run_runc("list", "--format", "json")
    if done.exit_code != 0:
        raise EngineError(f"`runc list` fails: {done.error_text}; try again")
    found = []
    for row in json.loads(done.stdout) or ():
        facts = {
            "created": datetime.fromisoformat(row["created"]).timestamp(),
            **json.loads(row["annotations"][NAME]),
        }
        found.append(ContainerRecord(id=row["id"], state=row["status"], **facts))
    return tuple(found)


def remove(*ids: str) -> None:
    """Kill containers, and wait at most 10 s for each keeper."""
    for one in ids:
        run_runc("delete", "--force", one)
    wait_until(
        lambda: not any(is_keeper(process, ids) for process in psutil.process_iter()), 10, 0.05
    )


def is_keeper(process: psutil.Process, ids: Sequence[str]) -> bool:
    """Return whether a process still keeps one of these containers."""
    try:
        words = process.cmdline()
        return words[2:3] == [KEEPER] and words[-1] in ids
    except psutil.Error:
        return False


def try_here() -> EngineInfo:
    """Run a container of the host's programs; return what runc can do.

    Raises:
        EngineUnavailableError: runc is missing or cannot run a container.
    """
    version, done = run_runc("--version").stdout.decode().split()[2], run_trial()
    said = done.stdout.decode()
    if "memory" not in said:
        step = (
            f"{common.NEED_IDS}; overlay mounts of users need Linux 5.11"
            if ROOTLESS
            else "make cgroups writable"
        )
        raise EngineUnavailableError(NAME, f"no container runs: {done.error_text}", step)
    limits = common.shown_limits(said)
    if limits["pids"] == "no" and common.is_fork_limited(said):
        limits["pids"] = "rlimit"
    return EngineInfo(
        engine=NAME,
        version=version,
        rootless=ROOTLESS,
        networks=("none", "host"),
        limits={**limits, "tmpfs_bytes": "cgroup", "shm_bytes": "cgroup"},
        users="users" in said,
        refuses=frozenset(("user", *common.IMAGE_OPERATIONS[2:])),
        reclaim_args=tuple(AS_ROOT),
    )


def run_trial() -> ProcessResult:
    """Return what the trial prints in a container with limits."""
    links, directories = common.userland_links()
    shown = tuple(Mount(source=path, target=path) for path in ("/usr", *directories))
    limited = Limits(pids=100) if ROOTLESS else Limits(memory_bytes=64 << 20, cpus=0.5, pids=100)
    spec, name = (
        ContainerSpec(image="trial", mounts=shown, limits=limited),
        f"trial-{secrets.token_hex(6)}",
    )
    with owned_directory() as place:
        (root := Path(place, "host")).mkdir()
        for link, target in links.items():
            (root / link).symlink_to(target)
        exchange = Mount(source=place, target="/run/hyperruntime")
        launch = Launch(spec=spec, name=name, labels={}, exchange=exchange, private_dir=place)
        args = start(launch, root, dict.fromkeys(LIMITS, "no" if ROOTLESS else "cgroup"))
        return run_process(args, input=TRIAL.encode(), timeout_s=60, env=ENV)


_: type[Driver] = RuncDriver
