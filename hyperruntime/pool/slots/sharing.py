"""Isolation of slots that share a container, by users or only by directories. See docs/decisions/0023-pool.md."""

from __future__ import annotations

import posixpath
import secrets
import threading

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.pool.slots import scripts as inside
from hyperruntime.pool.slots.isolation import ContainerIsolation, SlotIsolation
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.slots.users import Users
from hyperruntime.pool.slots.writable_paths import WritablePaths, apply_survey, take_survey
from hyperruntime.pool.values.config import Isolation, PoolConfig, PoolLayout
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult

_TIMEOUT_S = 120.0
_ELSEWHERE = 5  # RENEW_USER's exit code if the user left files in world-writable directories


class UserIsolation(SlotIsolation):
    """Slots that share a container; each slot has its own user, and a new one for each lease."""

    def __init__(self, config: PoolConfig, plan: PoolLayout) -> None:
        """Take the base directory, the process limit and the number of slots."""
        self._base, self._pids, self._slots = config.workspace_base, config.pids_per_slot, plan.slots
        self._survey: WritablePaths | None = None
        self._users: Users | None = None
        self._lock = threading.Lock()

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots; only the pool's first container is searched for world-writable paths."""
        with self._lock:
            if self._survey is None:
                return self._prepare_first(container)
        return self._prepare(container, self._survey)

    def _prepare_first(self, container: Container) -> list[SlotExec]:
        survey = take_survey(container)
        self._users = Users.of_map(survey.uid_map)
        slot_execs = self._prepare(container, survey)
        slot_execs[0] = self._try_out(slot_execs[0], survey)
        self._survey = survey
        return slot_execs

    def _prepare(self, container: Container, survey: WritablePaths) -> list[SlotExec]:
        apply_survey(container, survey)
        base = make_base(container, self._base)
        return [_make_slot(container, f"{base}/{number}", self._next_user()) for number in range(self._slots)]

    def renew(self, slot_exec: SlotExec) -> SlotExec:
        """Kill the user's processes, remove its files and SysV objects, and return the slot with another user."""
        assert self._survey is not None
        return self._renew(slot_exec, self._survey)

    def _renew(self, slot_exec: SlotExec, survey: WritablePaths) -> SlotExec:
        users, user = self._users, slot_exec.user
        assert users is not None
        slot_exec.end_processes()
        following = self._next_user()
        try:
            result = self._clean(slot_exec, following, survey)
            if result.exit_code == _ELSEWHERE:
                remove = ("/bin/sh", "-c", inside.REMOVE_OWN, "remove", str(user.uid))
                slot_exec.container.exec([*remove, *survey.directories], user=user, workdir="/", timeout_s=_TIMEOUT_S)
                slot_exec.end_processes()
                result = self._clean(slot_exec, following, survey)
            _check(slot_exec.slot_id, result)
        except BaseException:
            users.give_back(following.uid)
            raise
        users.give_back(user.uid)
        return _slot_exec(slot_exec.container, posixpath.dirname(slot_exec.workspace), following)

    def forget(self, slot_exec: SlotExec) -> None:
        """Give back the user of a slot whose container is gone."""
        if self._users is not None:
            self._users.give_back(slot_exec.user.uid)

    def _try_out(self, slot_exec: SlotExec, survey: WritablePaths) -> SlotExec:
        """Reset a slot that has files to remove, to check that the image's programs can do it; return the slot."""
        names = [name + b"/.hyperruntime-" + secrets.token_hex(8).encode() for name in survey.directories[:3]]
        as_user = {"user": slot_exec.user, "workdir": "/", "timeout_s": _TIMEOUT_S}
        left = [name for name in names if slot_exec.container.exec(_try(name), **as_user).exit_code == 0]
        renewed = self._renew(slot_exec, survey)
        for name in left:
            _check(slot_exec.slot_id, slot_exec.container.exec(_try(name, "gone"), workdir="/", timeout_s=_TIMEOUT_S))
        return renewed

    def _clean(self, slot_exec: SlotExec, following: RunAs, survey: WritablePaths) -> ExecResult:
        area = posixpath.dirname(slot_exec.workspace)
        users = (str(slot_exec.user.uid), str(following.uid))
        words = ("/bin/sh", "-c", inside.RENEW_USER, "renew", area, *users, survey.race_option, inside.REMOVE_OWN)
        command: list[str | bytes] = [*words, "--", *survey.directories]
        return slot_exec.container.exec(command, workdir="/", timeout_s=_TIMEOUT_S)

    def _next_user(self) -> RunAs:
        assert self._users is not None
        return RunAs(uid=self._users.take(), pids=self._pids)


class DirectoryIsolation(SlotIsolation):
    """Slots that share a container and its user; only their directories differ."""

    def __init__(self, config: PoolConfig, plan: PoolLayout) -> None:
        """Take the base directory and the number of slots."""
        self._base, self._slots = config.workspace_base, plan.slots

    def prepare(self, container: Container) -> list[SlotExec]:
        """Create the slots."""
        base = make_base(container, self._base)
        return [_make_slot(container, f"{base}/{number}", None) for number in range(self._slots)]

    def renew(self, slot_exec: SlotExec) -> SlotExec:
        """End the slot's processes and remove its directory; files that it wrote elsewhere stay."""
        slot_exec.end_processes()
        area = posixpath.dirname(slot_exec.workspace)
        command = ["/bin/sh", "-c", inside.RENEW_DIRECTORY, "renew", area]
        _check(slot_exec.slot_id, slot_exec.container.exec(command, workdir="/", timeout_s=_TIMEOUT_S))
        return _slot_exec(slot_exec.container, area, None)


def make_isolation(config: PoolConfig, plan: PoolLayout) -> SlotIsolation:
    """Return the slot isolation that a layout asks for."""
    if plan.isolation == "container":
        return ContainerIsolation(config)
    return UserIsolation(config, plan) if plan.isolation == "uid" else DirectoryIsolation(config, plan)


def make_base(container: Container, wanted: str) -> str:
    """Create the directory of all slots and return its path.

    Args:
        container: where the directory is created.
        wanted: absolute path; if it cannot be used, /var/tmp, /tmp and /dev/shm are tried.

    Raises:
        PoolError: none of them is writable.
    """
    name = f"slots-{secrets.token_hex(8)}"
    for base in (posixpath.normpath(wanted), f"/var/tmp/{name}", f"/tmp/{name}", f"/dev/shm/{name}"):  # noqa: S108
        command = ["/bin/sh", "-c", inside.MAKE_BASE, "base", base]
        if container.exec(command, workdir="/", timeout_s=_TIMEOUT_S).exit_code == 0:
            return base
    raise PoolError(
        f"no directory for slots in {container.name}: {wanted}, /var/tmp, /tmp and /dev/shm are not writable; set"
        " workspace_base to a writable directory"
    )


def _try(name: bytes, gone: str = "") -> list[str | bytes]:
    return ["/bin/sh", "-c", inside.TRY, "try", name, gone]


def _make_slot(container: Container, area: str, user: RunAs | None) -> SlotExec:
    command = ["/bin/sh", "-c", inside.MAKE_AREA, "area", area, "" if user is None else str(user.uid)]
    _check(area, container.exec(command, workdir="/", timeout_s=_TIMEOUT_S))
    return _slot_exec(container, area, user)


def _slot_exec(container: Container, area: str, user: RunAs | None) -> SlotExec:
    slot_id = f"{container.name}-{posixpath.basename(area)}"
    env = {"HOME": f"{area}/home", "TMPDIR": f"{area}/tmp"}  # noqa: S108 - inside
    if user is not None:
        env |= {"USER": "slot", "LOGNAME": "slot"}
    isolation: Isolation = "directory" if user is None else "uid"
    return SlotExec(container, slot_id=slot_id, workspace=f"{area}/workspace", user=user, env=env, isolation=isolation)


def _check(what: str, result: ExecResult) -> None:
    if result.exit_code != 0:
        why = result.stderr.decode(errors="replace").strip() or f"exit code {result.exit_code}"
        raise PoolError(f"{what} could not be prepared for a lease: {why}")
