"""Run commands as one slot: with its user, directory and environment, one call after another."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from hyperruntime.container import Container
from hyperruntime.errors import PoolError
from hyperruntime.exec.options import SlotExecKeywords, SlotTerminalKeywords
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.pool.values.config import Isolation
from hyperruntime.spec import ExecResult


class SlotExec:
    """Runs commands as one slot; the pool makes one for each slot, independent of its leases.

    Attributes:
        container: the container of the slot.
        slot_id: the slot's name.
        workspace: absolute path of the slot's directory inside the container.
        user: the user that its commands run as; None means the container's main user.
        env: variables that its commands get in addition to the container's (HOME, TMPDIR).
        options: keyword arguments of :meth:`Container.exec` that mark the slot's commands: ``user``, or else ``group``.
        turn: taken by each call of a tool, so that the calls of one slot run one after another, in the order they came.
        network: the container's network.
        isolation: how the slot is isolated: its own container, its own user, or only its own directory.
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
        self.container, self.slot_id, self.workspace = container, slot_id, workspace
        self.user, self.env, self.isolation = user, dict(env or {}), isolation
        self.network = container.spec.network
        self.options: dict[str, Any] = {"group": slot_id} if user is None else {"user": user}
        self.turn = asyncio.Lock()
        self._shell: Shell | None = None

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
        options["env"] = self._env(options.get("env"))
        options["workdir"] = self._path(options.get("workdir"))
        return await self.container.aexec(args, **options, **self.options)

    async def aspawn(self, args: Sequence[str | bytes], **options: Unpack[SlotExecKeywords]) -> Process:
        """Start a command as the slot in the background; see :meth:`Container.spawn`."""
        options["env"] = self._env(options.get("env"))
        options["workdir"] = self._path(options.get("workdir"))
        return await self.container.aspawn(args, **options, **self.options)

    async def aterminal(
        self, args: Sequence[str | bytes], *, rows: int, cols: int, **options: Unpack[SlotTerminalKeywords]
    ) -> Terminal:
        """Start a command as the slot on a terminal; see :meth:`Container.terminal`."""
        options["env"] = self._env(options.get("env"))
        options["workdir"] = self._path(options.get("workdir"))
        return await self.container.aterminal(args, rows=rows, cols=cols, **options, **self.options)

    def _env(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**self.env, **(env or {})}

    def _path(self, workdir: str | None) -> str:
        return posixpath.join(self.workspace, workdir or "").rstrip("/") or "/"

    def shell(self) -> Shell:
        """Return the slot's persistent bash; make one if there is none."""
        if self._shell is None:
            self._shell = self.container.shell(env=self.env, workdir=self.workspace, **self.options)
        return self._shell

    def end_processes(self) -> None:
        """End every process of the slot. Blocks.

        Raises:
            PoolError: a process could not be ended.
        """
        own_user = self.isolation == "uid"
        ended = self.container.end_user(self.user) if own_user else self.container.end_group(self.slot_id)
        if not ended:
            raise PoolError(f"processes of slot {self.slot_id} could not be ended; release it")

    async def close(self) -> None:
        """End the slot's persistent bash and its jobs; the slot may be used again."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await asyncio.to_thread(shell.close)
