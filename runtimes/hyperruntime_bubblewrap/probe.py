"""Probe what bubblewrap can do for this user by running containers of this machine's programs.

The result is cached per boot, ``bwrap``, user, process limit and scratch directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs

from hyperruntime.driver import Enforcement, EngineInfo, Finding, Launch
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_findings import failure_finding
from hyperruntime.host.engine_program import (
    ALL_IDS,
    NEED_IDS,
    ONE_ID,
    TRY_USERS,
    TrialResult,
    Trials,
    namespace_step,
    program_facts,
)
from hyperruntime.host.inherited import process_ceiling
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.probe_cache import ProbeFile
from hyperruntime.host.process import find_program
from hyperruntime.host.seccomp import UNKNOWN_MACHINE, write_filter
from hyperruntime.layers.images import has_puller
from hyperruntime.layers.namespace import trial_args
from hyperruntime.layers.overlays import FUSE, attribute_findings, has_overlay
from hyperruntime.layers.scratch import scratch_directory
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import ENV, IMAGE, NAME, make_job

SCRIPT = (
    b"echo works;{ for n in $(seq 20);do sleep 600& done;echo unlimited;} 2>&1|"
    b"{ read s;echo first $s;kill -9 -1;}\n"
)


@attrs.frozen(kw_only=True)
class Probe:
    """The result of a probe.

    Attributes:
        version: bubblewrap's version.
        users: whether this user's subordinate ids are users of a container.
        pids: how a limit on processes is enforced.
        storage: what makes the files of a container from those of an image: ``overlay``,
            ``fuse-overlayfs`` or ``copy``.
        unfiltered: why commands run without a seccomp filter, or "".
    """

    version: str
    users: bool
    pids: Enforcement
    storage: str
    unfiltered: str = ""

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=True,
            storage=self.storage,
            networks=("none", "host"),
            limits={
                "memory_bytes": "no",
                "cpus": "no",
                "pids": self.pids,
                "tmpfs_bytes": "cgroup",
                "shm_bytes": "cgroup",
            },
            users=self.users,
            ignores_modes=self.users,
            image_owners=self.users,
            unfiltered=self.unfiltered,
            snapshots=True,
            reclaim_args=("unshare", *ALL_IDS) if self.users else (),
            refuses=frozenset(() if self.users else ("user",))
            | frozenset(() if has_puller() else ("images.pull",)),
        )


def cached_probe() -> tuple[Probe, bool]:
    """Return the cached result, or probe; and whether the result came from the cache.

    Raises:
        EngineUnavailableError: bubblewrap is missing or cannot run a container.
    """
    found = probe_file().read()
    return (probe(), False) if found is None else (found, True)


def findings() -> Sequence[Finding]:
    """Probe and return the findings; never raises."""
    try:
        found = probe()
    except EngineUnavailableError as error:
        return (failure_finding(NAME, error),)
    users = "yes" if found.users else f"no; {NEED_IDS}"
    detail = f"{found.version}; limits: {dict(found.to_info().limits)}; other users: {users}"
    detail += f"; files of images: {found.storage}"
    return Finding(subject=NAME, ok=True, detail=detail), *attribute_findings()


def probe() -> Probe:
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
    if not find_program("bwrap"):
        raise EngineUnavailableError(NAME, "`bwrap` is not on PATH", "install bubblewrap")
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
        why = f"no container runs: {free.error_text}"
        raise (
            trials.error("it is installed")
            if free.is_late
            else EngineUnavailableError(NAME, why, namespace_step(why))
        )
    found = Probe(
        version=trials.run(["bwrap", "--version"]).stdout.decode().rpartition(" ")[2].strip(),
        users=users,
        pids="rlimit" if limited.is_fork_limited else "no",
        storage=_storage(trials, users=users),
        unfiltered=unfiltered,
    )
    if not trials.late:
        probe_file().write(found)
    return found


def _storage(trials: Trials, *, users: bool) -> str:
    if has_overlay(trials, users=users):
        return "overlay"
    program = find_program(FUSE)
    return FUSE if program and has_overlay(trials, users=users, program=program) else "copy"


def probe_file() -> ProbeFile[Probe]:
    """Return the file with the result of the probe."""
    facts = [*program_facts("bwrap"), *program_facts(FUSE), process_ceiling(), scratch_directory()]
    return ProbeFile(NAME, facts, Probe)


def run_trial(
    trials: Trials, place: str, script: bytes, pids: int | None = None, *, users: bool
) -> TrialResult:
    """Return the result of a script in a trial container of this machine's programs; ``place``
    takes its files.
    """
    usr = Mount(source="/usr", target="/mnt")
    launch = Launch(
        spec=ContainerSpec(image=IMAGE, limits=Limits(pids=pids)),
        name="hyperruntime-trial",
        labels={},
        exchange=usr,
        private_dir=place,
    )
    job = make_job(launch, None, place, filter_path=write_filter(place), layers=None, users=users)
    ids = ALL_IDS if users else ONE_ID
    return trials.run(trial_args(job, ids, f"{place}/job"), script)
