"""Probe a program that makes sandboxes and nothing else, such as ``bwrap``: it has no images, no
cgroups and no service. The trials are containers of this machine's programs.

The result is cached per boot, program, user, process limit and scratch directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import attrs

from hyperruntime.driver import Enforcement, EngineInfo, Finding
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_findings import failure_finding
from hyperruntime.host.engine_program import (
    ALL_IDS,
    NEED_IDS,
    TRY_FORKS,
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
from hyperruntime.host.temporary import scratch_directory
from hyperruntime.layers.images import has_puller
from hyperruntime.layers.overlays import FUSE, attribute_findings, storage_kind
from hyperruntime.layers.owners import has_all_ids

SCRIPT = f"echo works;{TRY_FORKS}\n".encode()


@attrs.frozen(kw_only=True)
class PlainProbe:
    """The result of a probe.

    Attributes:
        engine: the driver's name.
        version: the program's version.
        users: whether this user's subordinate ids are users of a container.
        pids: how a limit on processes is enforced.
        storage: what makes the files of a container from those of an image: ``overlay``,
            ``fuse-overlayfs`` or ``copy``.
        unfiltered: why commands run without a seccomp filter, or "".
    """

    engine: str
    version: str
    users: bool
    pids: Enforcement
    storage: str
    unfiltered: str = ""

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        return EngineInfo(
            engine=self.engine,
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
            services=True,
            reclaim_args=("unshare", *ALL_IDS) if self.users else (),
            refuses=frozenset(() if self.users else ("user",))
            | frozenset(() if has_puller() else ("images.pull",)),
        )


class PlainProber:
    """Probes one engine."""

    def __init__(
        self,
        engine: str,
        program: str,
        env: Mapping[str, str],
        run_trial: Callable[[Trials, str, bytes, int | None, bool], TrialResult],
        *,
        has_users: bool = True,
    ) -> None:
        """Probe nothing yet.

        Args:
            engine: the driver's name.
            program: the name of its program.
            env: the whole environment of its programs.
            run_trial: returns the result of a script in a trial container of this machine's
                programs. It gets a directory for its files, the script, a limit on processes, and
                whether this user's subordinate ids are users of the container.
            has_users: whether a container can have more users than one, where this user has
                subordinate ids.
        """
        self._engine = engine
        self._program = program
        self._env = env
        self._run_trial = run_trial
        self._has_users = has_users

    def cached(self) -> tuple[PlainProbe, bool]:
        """Return the cached result, or probe; and whether the result came from the cache.

        Raises:
            EngineUnavailableError: the program is missing or cannot run a container.
        """
        found = self.file().read()
        return (self.probe(), False) if found is None else (found, True)

    def findings(self) -> Sequence[Finding]:
        """Probe and return the findings; never raises."""
        try:
            found = self.probe()
        except EngineUnavailableError as error:
            return (failure_finding(self._engine, error),)
        detail = f"{found.version}; limits: {dict(found.to_info().limits)}"
        if self._has_users:
            detail += f"; other users: {'yes' if found.users else f'no; {NEED_IDS}'}"
        detail += f"; files of images: {found.storage}"
        return Finding(subject=self._engine, ok=True, detail=detail), *attribute_findings()

    def probe(self) -> PlainProbe:
        """Run containers to test other users and a process limit.

        Raises:
            EngineUnavailableError: the program is missing or runs no container in time, or this
                process runs as root.
        """
        if os.geteuid() == 0:
            why = "root in its containers would be the host's root"
            raise EngineUnavailableError(self._engine, why, "run as an ordinary user")
        if not find_program(self._program):
            why = f"`{self._program}` is not on PATH"
            raise EngineUnavailableError(self._engine, why, f"install {self._engine}")
        trials = Trials(self._engine, self._env)
        with owned_directory(short=True) as place:
            users = self._has_users and b"users" in (
                self._run_trial(trials, place, f"{TRY_USERS}\n".encode(), None, True).stdout
            )
            free, limited = (
                self._run_trial(trials, place, SCRIPT, pids, users) for pids in (None, 16)
            )
            unfiltered = "" if write_filter(place) else UNKNOWN_MACHINE
        if b"works" not in free.stdout:
            why = f"no container runs: {free.error_text}"
            raise (
                trials.error("it is installed")
                if free.is_late
                else EngineUnavailableError(self._engine, why, namespace_step(why))
            )
        said = trials.run([self._program, "--version"])
        version = (said.stdout or said.stderr).decode()  # `ch-run` of 0.45 writes it to the second
        found = PlainProbe(
            engine=self._engine,
            version=version.rpartition(" ")[2].strip(),
            users=users,
            pids="rlimit" if limited.is_fork_limited else "no",
            storage=storage_kind(trials, users=users if self._has_users else has_all_ids()),
            unfiltered=unfiltered,
        )
        if not trials.late:
            self.file().write(found)
        return found

    def file(self) -> ProbeFile[PlainProbe]:
        """Return the file with the result of the probe."""
        facts = [*program_facts(self._program), *program_facts(FUSE), process_ceiling()]
        return ProbeFile(self._engine, [*facts, scratch_directory()], PlainProbe)
