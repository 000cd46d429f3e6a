"""Run commands as one slot: with its user, directory and environment, one call after another."""

from __future__ import annotations

import asyncio
import copy
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from weakref import WeakSet

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.exec.options import SlotExecKeywords, SlotShellKeywords
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.pool_values.config import Isolation
from hyperruntime.run_as import NamedUser, find_named
from hyperruntime.spec import ExecResult

_READ_TIMEOUT_S = 60.0


class SlotExec:
    """Runs commands as one slot; the pool makes one for each slot, independent of its leases.

    Attributes:
        container: the container of the slot.
        slot_id: the slot's name.
        workspace: absolute path of the slot's directory inside the container.
        user: the user that its commands run as; None means the container's main user.
        env: variables that its commands get in addition to the container's (HOME, TMPDIR).
        options: keyword arguments of :meth:`Container.exec` that mark the slot's commands:
            ``user``, or else ``group``.
        turn: taken by each call of a tool, so that the calls of one slot run one after another, in
            the order they came.
        network: the container's network.
        isolation: how the slot is isolated: its own container, its own user, or only its own
            directory.

    A slot with a container of its own can have a :meth:`view` for each user of the container.
    """

    def __init__(
        self,
        container: Container,
        *,
        slot_id: str,
        workspace: str,
        user: Any = None,  # noqa: ANN401 - as in Container.exec
        env: Mapping[str, str] | None = None,
        isolation: Isolation = "container",
    ) -> None:
        """Describe the slot; nothing runs yet.

        Args:
            container: the container of the slot.
            slot_id: the slot's name.
            workspace: absolute path of the slot's directory inside the container.
            user: the user of its commands; None means the container's main user.
            env: variables in addition to the container's.
            isolation: how the slot is isolated.
        """
        self.container = container
        self.slot_id = slot_id
        self.workspace = workspace
        self.user = user
        self.env = dict(env or {})
        self.isolation = isolation
        self.network = container.spec.network_word
        self.options: dict[str, Any] = {"group": slot_id} if user is None else {"user": user}
        self.turn = asyncio.Lock()
        self._tool_shells: dict[Any, Shell] = {}  # by user
        self._shells = WeakSet[Shell]()
        self._groups: set[str] = set()
        self._views: dict[str, tuple[NamedUser, SlotExec]] = {}

    async def add_user(self, user: str) -> NamedUser:
        """Return a user of the slot's own container, as whom :meth:`view` runs commands; later
        calls change nothing.

        Call it before commands that are not trusted run: it reads the container's ``/etc/passwd``
        and ``/etc/group``.

        Args:
            user: ``name`` or ``uid``, with an optional ``:group``.

        Raises:
            UserNotFoundError: the container has no such user.
            SpecError: the user is root, or in the group of root.
            PoolError: the slot shares its container.
        """
        if self.isolation != "container":
            raise PoolError(
                f"slot {self.slot_id} shares its container, so it has one user; use one slot "
                "per container"
            )
        if user in self._views:
            return self._views[user][0]
        named = find_named(
            user, *[await self._read(path) for path in ("/etc/passwd", "/etc/group")]
        )
        view = copy.copy(self)
        view.user = named.run_as
        view.env = {**self.env, "HOME": named.ids.home}
        view.options = {**self.options, "user": named.run_as}
        self._views[user] = named, view
        return named

    async def _read(self, path: str) -> str:
        result = await self.aexec(["cat", path], workdir="/", timeout_s=_READ_TIMEOUT_S)
        return result.stdout.decode(errors="replace")

    def view(self, user: str) -> SlotExec:
        """Return the slot for a user of :meth:`add_user`: all but the user and HOME is the same
        slot's.
        """
        return self._views[user][1]

    async def aexec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[SlotExecKeywords],
    ) -> ExecResult:
        """Run a command as the slot.

        The caller takes the slot's ``turn`` if it needs one. Arguments not listed are those of
        :meth:`Container.aexec`.

        Args:
            env: variables in addition to the slot's.
            workdir: absolute, or relative to the workspace; None means the workspace.

        Raises:
            HyperRuntimeError: as in :meth:`Container.aexec`.
        """
        return await self.container.aexec(args, **self.placed(options))

    def open_shell(self, **options: Unpack[SlotShellKeywords]) -> Shell:
        """Return a new persistent bash of the slot, which :meth:`close` ends; see
        :meth:`Container.shell`.
        """
        shell = self.container.shell(**self.placed(options))
        self._shells.add(shell)
        return shell

    def tool_shell(self) -> Shell:
        """Return the persistent bash of the slot's tools; make one if there is none."""
        if self.user not in self._tool_shells:
            self._tool_shells[self.user] = self.open_shell()
        return self._tool_shells[self.user]

    def placed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of a container's method that starts a command as the slot."""
        given = {
            name: value for name, value in options.items() if name != "group" or value is not None
        }
        given["env"] = {**self.env, **(given.get("env") or {})}
        given["workdir"] = (
            posixpath.join(self.workspace, given.get("workdir") or "").rstrip("/") or "/"
        )
        if "group" in given:
            given["group"] = self.group_name(given["group"])
            self._groups.add(given["group"])
        return {**self.options, **given}

    def group_name(self, group: str) -> str:
        """Return the container's name of a group of the slot."""
        return f"{self.slot_id}/{group}"

    def end_processes(self) -> None:
        """End every process of the slot. Blocks.

        Raises:
            PoolError: a process could not be ended.
        """
        if self.isolation == "uid":
            ended = [self.container.end_user(self.user)]
        else:
            ended = [self.container.end_group(group) for group in (self.slot_id, *self._groups)]
            ended += [
                self.container.end_user(named.ids, named.run_as)
                for named, _ in self._views.values()
            ]
        if not all(ended):
            raise PoolError(f"processes of slot {self.slot_id} could not be ended; release it")

    async def close(self) -> None:
        """End all persistent shells of the slot and their jobs; the slot may be used again."""
        self._tool_shells.clear()
        await asyncio.gather(*(shell.aclose() for shell in tuple(self._shells)))
