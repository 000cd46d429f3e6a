"""The bubblewrap driver: for machines without a container engine, and for ordinary users only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

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
from hyperruntime.errors import EngineError, EngineUnavailableError, ImageNotFoundError, SpecError
from hyperruntime.host import process
from hyperruntime.host.engine_driver import ShellContainer, removal_args
from hyperruntime.host.engine_findings import failure_finding
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.engine_program import (
    ALL_IDS,
    IMAGE_OPERATIONS,
    NEED_IDS,
    TRY_USERS,
    TrialResult,
    Trials,
    program_needed,
    refused_images,
)
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.seccomp import UNKNOWN_MACHINE, write_filter
from hyperruntime.images.recipes import BASE, PREFIX
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import IMAGE, MARK, NAME, refuse, run_args

BASE_NAMES = (f"{PREFIX}{BASE}:latest", f"{PREFIX}{BASE}")
BASE_PROGRAMS = ("git", "patch", "python3", "tar")
REFUSED = frozenset((*IMAGE_OPERATIONS, "user"))
NETS = ("none", "host")
ENV = {"PATH": os.defpath}
ABLE = EngineInfo(
    engine=NAME, version="", rootless=True, networks=NETS, image_owners=False, refuses=REFUSED
)
ONLY_USR = (
    f"this machine's /usr is its only image, and `base` if it has {', '.join(BASE_PROGRAMS)}; "
    "use another engine"
)
SCRIPT = (
    b"echo works;{ for n in $(seq 20);do sleep 600& done;echo unlimited;} 2>&1|"
    b"{ read s;echo first $s;kill -9 -1;}\n"
)


class HostImages:
    """One image: the host's programs. It is also the base image if the host has the base image's
    programs.
    """

    def exists(self, reference: str) -> bool:
        """Return whether a reference names the host's userland."""
        return reference == IMAGE or (
            reference in BASE_NAMES and all(map(process.find_program, BASE_PROGRAMS))
        )

    def list(self) -> tuple[Image, ...]:
        """Return the only image."""
        return (
            Image(
                id=IMAGE,
                references=(*filter(self.exists, (IMAGE, BASE_NAMES[0])),),
                size_bytes=0,
                created=0,
            ),
        )

    remove, load_rootfs, load, save, pull, build = refused_images(NAME, ONLY_USR)


class BubblewrapContainer(ShellContainer):
    """A container whose main process is the shell attached to ``bwrap``; it has no files on
    disk.
    """

    def __init__(self, launch: Launch, *, users: bool) -> None:
        """Start the container without waiting for its shell; ``users``: whether subordinate ids are
        its users.
        """
        self.id = launch.name
        self._spec = launch.spec
        args = run_args(launch, write_filter(launch.private_dir), users=users, created=time.time())
        with program_needed(NAME, "bwrap", "install bubblewrap"):
            self.shell = process.ProcessShell(process.spawn_attached(args, ENV))

    def explain_start_failure(self, error_text: str, user: str | None = None) -> Exception:
        """Return the error that says why the shell never answered."""
        if "Can't chdir to" in error_text:
            return SpecError(
                "workdir", self._spec.workdir, "a directory that exists in the image or in a mount"
            )
        return EngineUnavailableError(
            NAME, error_text.strip() or "its shell never answered", "see `hyperrun doctor`"
        )

    def remove(self) -> None:
        """End the container."""
        self.shell.close()


class BubblewrapDriver:
    """Driver for bubblewrap 0.8 and newer."""

    name = NAME
    images = HostImages()
    _info: EngineInfo | None = None

    def open(self, private_dir: str) -> None:
        """Do nothing: this driver needs no private directory."""

    def probe(self) -> EngineInfo:
        """Return what bubblewrap can do on this machine; only the first call probes."""
        self._info = self._info or try_here()
        return self._info

    def diagnose(self) -> Sequence[Finding]:
        """Probe again and return the findings."""
        try:
            info = try_here()
        except EngineUnavailableError as error:
            return (failure_finding(NAME, error),)
        users = "yes" if info.users else f"no; {NEED_IDS}"
        detail = f"{info.version}; limits: {dict(info.limits)}; other users: {users}"
        return (Finding(subject=NAME, ok=True, detail=detail),)

    def launch(self, launch: Launch) -> BubblewrapContainer:
        """Start a container with its shell attached."""
        refuse(launch.spec, self.probe().limits["pids"])
        if not self.images.exists(launch.spec.image):
            raise ImageNotFoundError(
                launch.spec.image, f"use {IMAGE!r}, the only image of bubblewrap"
            )
        return BubblewrapContainer(launch, users=self.probe().users)

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return this user's containers."""
        return tuple({record.id: record for _, record in keepers()}.values())

    def remove_container(self, container_id: str) -> None:
        """End a container."""
        end(lambda record: record.id == container_id)

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that ends every container with a label."""
        return removal_args(self, label)

    def close(self) -> None:
        """Do nothing: this driver starts no service."""


def keepers() -> Iterator[tuple[psutil.Process, ContainerRecord]]:
    """Yield this user's keepers, and the container that their arguments name; a child just forked
    has the same ones.
    """
    for keeper in psutil.process_iter():
        try:
            args = keeper.cmdline()
            if args[3:4] == [MARK] and keeper.uids().real == os.getuid():
                facts = {
                    "id": args[4],
                    "state": "running",
                    "created": keeper.create_time(),
                    **json.loads(args[5]),
                }
                yield keeper, ContainerRecord(**facts)
        except (psutil.Error, ValueError, TypeError, IndexError):
            continue


def end(is_meant: Callable[[ContainerRecord], bool]) -> None:
    """Kill keepers, wait for their descendants, and kill those that did not end with their parent.

    Raises:
        EngineError: some do not end in time.
    """
    doomed = {
        one: process.process_start_ticks(one.pid) or 0
        for one, record in keepers()
        if is_meant(record)
    }

    def have_ended() -> bool:
        for one in list(doomed):
            # it has ended meanwhile, or is another user's and ends with its parent
            with suppress(psutil.Error):
                doomed.update(
                    {
                        p: process.process_start_ticks(p.pid) or 0
                        for p in one.children(recursive=True)
                    }
                )
                one.kill()
        return not any(process.is_alive(one.pid, ticks) for one, ticks in doomed.items())

    if not process.wait_until(have_ended, limit_s(NAME, "kill")):
        raise EngineError(
            "a container does not end; kill its processes: "
            f"{', '.join(str(one.pid) for one in doomed)}"
        )


def try_here() -> EngineInfo:
    """Run containers to test a process limit; the script reads one line only, because bash retries
    a fork for 15 s.

    Raises:
        EngineUnavailableError: bubblewrap is missing or runs no container in time, or this process
            runs as root.
    """
    if os.geteuid() == 0:
        raise EngineUnavailableError(
            NAME, "root in its containers would be the host's root", "run as an ordinary user"
        )
    if not (process.find_program("bwrap") and process.find_program("prlimit")):
        raise EngineUnavailableError(
            NAME, "`bwrap` or `prlimit` is not on PATH", "install bubblewrap and util-linux"
        )
    with owned_directory(short=True) as place:
        users = (
            b"users"
            in run_trial(
                trials := Trials(NAME, ENV), place, f"{TRY_USERS}\n".encode(), users=True
            ).stdout
        )
        free, limited = (run_trial(trials, place, SCRIPT, pids, users=users) for pids in (None, 16))
        unfiltered = "" if write_filter(place) else UNKNOWN_MACHINE
    if b"works" not in free.stdout:
        step = (
            "allow user namespaces: sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns"
        )
        if "temporarily unavailable" in free.error_text:
            step = "raise `ulimit -u` (processes of this user), or end some of its processes"
        why = f"no container runs: {free.error_text}"
        raise (
            trials.error("it is installed")
            if free.is_late
            else EngineUnavailableError(NAME, why, step)
        )
    pids: Enforcement = "rlimit" if limited.is_fork_limited else "no"
    version = trials.run(["bwrap", "--version"]).stdout.decode().rpartition(" ")[2].strip()
    limits = dict[str, Enforcement](
        memory_bytes="no", cpus="no", pids=pids, tmpfs_bytes="cgroup", shm_bytes="cgroup"
    )
    found = attrs.evolve(ABLE, version=version, limits=limits, unfiltered=unfiltered)
    return attrs.evolve(
        found, users=users, ignores_modes=users, reclaim_args=("unshare", *ALL_IDS) if users else ()
    )


def run_trial(
    trials: Trials, place: str, script: bytes, pids: int | None = None, *, users: bool
) -> TrialResult:
    """Return the result of a script in a trial container; ``place`` takes its files."""
    spec = ContainerSpec(image=IMAGE, limits=Limits(pids=pids))
    usr = Mount(source="/usr", target="/mnt")
    launch = Launch(
        spec=spec, name="hyperruntime-trial", labels={}, exchange=usr, private_dir=place
    )
    args = run_args(launch, write_filter(place), users=users, created=time.time())
    return trials.run(args, script)


_: type[Driver] = BubblewrapDriver
