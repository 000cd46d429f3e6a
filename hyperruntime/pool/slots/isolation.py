"""Isolation of the slots of a container: by containers, by users, or only by directories.

All methods block; the pool calls them in its threads. See docs/design/pool.md#resets.
"""

from __future__ import annotations

import os
import posixpath
import secrets
import threading
from typing import Protocol

from hyperruntime.concurrency.per_process import LockedDict, PerProcess
from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.layers.snapshots.snapshot import Snapshot, new_snapshot
from hyperruntime.network.egress import Egress
from hyperruntime.pool.slots import scripts
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.slots.writable_paths import (
    WritablePaths,
    close_writable_paths,
    find_writable_paths,
)
from hyperruntime.pool_values.config import Isolation, PoolConfig, PoolLayout
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult

_TIMEOUT_S = 120.0
_ELSEWHERE = 5  # RENEW_USER's exit code if the user left files in world-writable directories
_WORKSPACES = ("/workspace", "/tmp/workspace")  # noqa: S108 - inside
# Images and hosts use the ids below; some tools read the ids above as negative numbers.
_LOWEST = 20_000
_HIGHEST = 2**31 - 2
_SPAN = 1_000_000
_NOBODY = (65_533, 65_534, 65_535)
_LEAST = 256

# the user ids of all slots of this process
_taken: PerProcess[LockedDict[int, Users]] = PerProcess(LockedDict)


class SlotIsolation(Protocol):
    """Isolates the slots of a container from each other."""

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots of a container that has just started.

        Raises:
            HyperRuntimeError: the slots cannot be created; the container is unusable.
        """
        ...

    def renew(self, slot_exec: SlotExec, base: Snapshot | None = None) -> SlotExec:
        """End the processes of a slot, remove its files, check that nothing is left, and return the
        clean slot.

        Args:
            slot_exec: the slot.
            base: the files that its container gets; None means those that it started with. Only for
                slots with a container of their own.

        Raises:
            HyperRuntimeError: the slot cannot be cleaned, or something is left.
        """
        ...

    def forget(self, slot_exec: SlotExec) -> None:
        """Free what is reserved for a slot whose container is gone."""
        return


class ContainerIsolation(SlotIsolation):
    """One slot per container, running as the spec's user; the container is rolled back or replaced
    instead of cleaned.
    """

    def __init__(self, config: PoolConfig, start: Snapshot) -> None:
        """Take ``image_workdir``, and the files that containers start with."""
        self._image_workdir = config.image_workdir
        self._start = start

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the workspace: the spec's working directory, else the image's or a default
        directory.
        """
        workdir = container.spec.workdir
        if workdir is None and self._image_workdir:
            shown = container.exec(
                ["/bin/sh", "-c", 'printf %s "$PWD"'], timeout_s=_TIMEOUT_S
            ).check()
            workdir = os.fsdecode(shown.stdout)
        candidates = (workdir,) if workdir is not None else _WORKSPACES
        result = _sh(container, "workspace", scripts.MAKE_WORKSPACE, *candidates)
        if result.exit_code != 0:
            why = result.stderr.decode(errors="replace").strip()
            raise PoolError(
                f"no workspace for the slot in {container.name}: {why}; set the spec's workdir"
            )
        return [
            SlotExec(container, slot_id=f"{container.name}-0", workspace=os.fsdecode(result.stdout))
        ]

    def renew(self, slot_exec: SlotExec, base: Snapshot | None = None) -> SlotExec:
        """Roll the container back, and make the workspace again; that also shows that it
        answers.
        """
        container = slot_exec.container
        workspace = slot_exec.workspace
        container.rollback(base or self._start)
        network = container.spec.network
        container.egress = network if isinstance(network, Egress) else None
        args = ["mkdir", "-p", "--", workspace]
        _check(slot_exec.slot_id, container.exec(args, workdir="/", timeout_s=_TIMEOUT_S))
        return SlotExec(container, slot_id=slot_exec.slot_id, workspace=workspace)


class Users:
    """The user ids for the slots of one pool, unique in this process; a used id comes again only
    after all others.

    They are ids that the engine maps into a container.
    """

    def __init__(self, uid_map: str) -> None:
        """Begin at a random id, so that two processes seldom use the same.

        Args:
            uid_map: content of ``/proc/self/uid_map`` in the container.

        Raises:
            PoolError: the namespace has too few ids.

        Source: user_namespaces(7).
        """
        best = (0, 0)
        for line in uid_map.splitlines():
            begin, _, length = (int(word) for word in line.split())
            first = max(begin, _LOWEST)
            end = min(begin + length, _HIGHEST)
            best = max(best, (end - first, first))
        count, first = best
        if count < _LEAST:
            raise PoolError(
                "the engine maps too few user ids into a container for one per slot "
                f"({max(0, count)} from {_LOWEST} on); give this user more in /etc/subuid, or "
                "set slots_per_container=1"
            )
        if count > _SPAN:
            first, count = first + secrets.randbelow(count - _SPAN), _SPAN
        self._first = first
        self._count = count
        self._next = secrets.randbelow(count)

    def take(self) -> int:
        """Return a user id that no slot of this process has; see :meth:`give_back`.

        Raises:
            PoolError: every user id is taken.
        """
        with (taken := _taken.get()).lock:
            for _ in range(self._count):
                uid = self._first + self._next
                self._next = (self._next + 1) % self._count
                if uid not in taken and uid not in _NOBODY:
                    taken[uid] = self
                    return uid
        raise PoolError(
            "slots have taken every user id that the engine maps into a container; use fewer slots"
        )

    def give_back(self, uid: int) -> None:
        """Take back a user id; its processes and files must be gone."""
        with (taken := _taken.get()).lock:
            taken.pop(uid, None)


class UserIsolation(SlotIsolation):
    """Slots that share a container; each slot has its own user, and a new one for each lease."""

    def __init__(self, config: PoolConfig, layout: PoolLayout) -> None:
        """Take the base directory, the process limit and the number of slots."""
        self._base = config.workspace_base
        self._pids = config.pids_per_slot
        self._slots = layout.slots
        self._writable: WritablePaths  # of the first container, as are the users
        self._users: Users
        self._tried_out = False
        self._lock = threading.Lock()

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots; only the pool's first container is searched for world-writable
        paths.
        """
        with self._lock:
            if not self._tried_out:
                self._writable = find_writable_paths(container)
                self._users = Users(self._writable.uid_map)
                slot_execs = self._prepare(container)
                slot_execs[0] = self._try_out(slot_execs[0])
                self._tried_out = True
                return slot_execs
        return self._prepare(container)

    def _prepare(self, container: Container) -> list[SlotExec]:
        close_writable_paths(container, self._writable)
        base = make_base(container, self._base)
        return [
            _make_slot(container, f"{base}/{number}", self._next_user())
            for number in range(self._slots)
        ]

    def renew(self, slot_exec: SlotExec, base: Snapshot | None = None) -> SlotExec:
        """Kill the user's processes, remove its files and SysV objects, and return the slot with
        another user.
        """
        user = slot_exec.user
        directories = self._writable.directories
        slot_exec.end_processes()
        following = self._next_user()
        try:
            result = self._clean(slot_exec, following)
            if result.exit_code == _ELSEWHERE:
                _sh(
                    slot_exec.container,
                    "remove",
                    scripts.REMOVE_OWN,
                    str(user.uid),
                    *directories,
                    user=user,
                )
                slot_exec.end_processes()
                result = self._clean(slot_exec, following)
            _check(slot_exec.slot_id, result)
        except BaseException:
            self._users.give_back(following.uid)
            raise
        self._users.give_back(user.uid)
        return _slot_exec(slot_exec.container, posixpath.dirname(slot_exec.workspace), following)

    def forget(self, slot_exec: SlotExec) -> None:
        """Give back the user of a slot whose container is gone."""
        self._users.give_back(slot_exec.user.uid)

    def _try_out(self, slot_exec: SlotExec) -> SlotExec:
        """Reset a slot that has files to remove, to check that the image's programs can do it;
        return the slot.
        """
        names = [
            name + b"/.hyperruntime-" + secrets.token_hex(8).encode()
            for name in self._writable.directories[:3]
        ]
        container = slot_exec.container
        user = slot_exec.user
        left = [
            name
            for name in names
            if _sh(container, "try", scripts.TRY, name, "", user=user).exit_code == 0
        ]
        renewed = self.renew(slot_exec)
        for name in left:
            _check(slot_exec.slot_id, _sh(container, "try", scripts.TRY, name, "gone"))
        return renewed

    def _clean(self, slot_exec: SlotExec, following: RunAs) -> ExecResult:
        area = posixpath.dirname(slot_exec.workspace)
        survey = self._writable
        users = (str(slot_exec.user.uid), str(following.uid))
        words = (area, *users, survey.race_option, scripts.REMOVE_OWN)
        return _sh(
            slot_exec.container, "renew", scripts.RENEW_USER, *words, "--", *survey.directories
        )

    def _next_user(self) -> RunAs:
        return RunAs(uid=self._users.take(), pids=self._pids)


class DirectoryIsolation(SlotIsolation):
    """Slots that share a container and its user; only their directories differ."""

    def __init__(self, config: PoolConfig, layout: PoolLayout) -> None:
        """Take the base directory and the number of slots."""
        self._base = config.workspace_base
        self._slots = layout.slots

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots."""
        base = make_base(container, self._base)
        return [_make_slot(container, f"{base}/{number}", None) for number in range(self._slots)]

    def renew(self, slot_exec: SlotExec, base: Snapshot | None = None) -> SlotExec:
        """End the slot's processes and remove its directory; files that it wrote elsewhere stay."""
        slot_exec.end_processes()
        area = posixpath.dirname(slot_exec.workspace)
        _check(slot_exec.slot_id, _sh(slot_exec.container, "renew", scripts.RENEW_DIRECTORY, area))
        return _slot_exec(slot_exec.container, area, None)


def make_isolation(config: PoolConfig, layout: PoolLayout, engine: str) -> SlotIsolation:
    """Return the slot isolation that a layout asks for on an engine."""
    if layout.isolation == "container":
        return ContainerIsolation(config, new_snapshot(engine, layout.spec.image, ()))
    return (
        UserIsolation(config, layout)
        if layout.isolation == "uid"
        else DirectoryIsolation(config, layout)
    )


def make_base(container: Container, wanted: str) -> str:
    """Create the directory of all slots and return its path.

    Args:
        container: where the directory is created.
        wanted: absolute path; if it cannot be used, /var/tmp, /tmp and /dev/shm are tried.

    Raises:
        PoolError: none of them is writable.
    """
    name = f"slots-{secrets.token_hex(8)}"
    for base in (
        posixpath.normpath(wanted),
        f"/var/tmp/{name}",  # noqa: S108
        f"/tmp/{name}",  # noqa: S108
        f"/dev/shm/{name}",  # noqa: S108
    ):
        if _sh(container, "base", scripts.MAKE_BASE, base).exit_code == 0:
            return base
    raise PoolError(
        f"no directory for slots in {container.name}: {wanted}, /var/tmp, /tmp and /dev/shm are "
        "not writable; set workspace_base to a writable directory"
    )


def _sh(
    container: Container, name: str, script: str, *args: str | bytes, user: RunAs | None = None
) -> ExecResult:
    """Run a script of ``scripts`` as a user, by default the container's main one."""
    return container.exec(
        ["/bin/sh", "-c", script, name, *args], user=user, workdir="/", timeout_s=_TIMEOUT_S
    )


def _make_slot(container: Container, area: str, user: RunAs | None) -> SlotExec:
    _check(
        area, _sh(container, "area", scripts.MAKE_AREA, area, "" if user is None else str(user.uid))
    )
    return _slot_exec(container, area, user)


def _slot_exec(container: Container, area: str, user: RunAs | None) -> SlotExec:
    slot_id = f"{container.name}-{posixpath.basename(area)}"
    env = {"HOME": f"{area}/home", "TMPDIR": f"{area}/tmp"}  # noqa: S108 - inside
    if user is not None:
        env |= {"USER": "slot", "LOGNAME": "slot"}
    isolation: Isolation = "directory" if user is None else "uid"
    return SlotExec(
        container,
        slot_id=slot_id,
        workspace=f"{area}/workspace",
        user=user,
        env=env,
        isolation=isolation,
    )


def _check(what: str, result: ExecResult) -> None:
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
        raise PoolError(f"{what} could not be prepared for a lease: {why}")
