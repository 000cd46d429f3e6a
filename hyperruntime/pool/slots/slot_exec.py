"""One slot's hands in its container: its user, its directory, its environment, its turn."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, Literal

from hyperruntime.container import Container
from hyperruntime.exec.options import OutputCallback
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult

Isolation = Literal["container", "uid", "directory"]


class SlotExec:
    """Where one slot's commands run, whoever holds the lease; made by the pool, one for each slot.

    Attributes:
        container: that it is in.
        slot_id: its name.
        workspace: absolute path of its directory inside.
        user: that its commands run as; None is the container's own.
        env: what its commands get on top of the container's (HOME, TMPDIR).
        options: what tells the container whose commands they are.
        network: of the container.
        isolation: what keeps its siblings out: a container of its own, a user of its own, or only a directory.
    """

    def __init__(
        self,
        container: Container,
        *,
        slot_id: str,
        workspace: str,
        user: Any = None,  # noqa: ANN401 - what Container.exec takes
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        isolation: Isolation = "container",
        group: str | None = None,
    ) -> None:
        """Describe it; nothing is run or made.

        Args:
            group: marks its commands among those of one user, so that they can be ended apart.
        """
        self.container, self.slot_id, self.workspace = container, slot_id, workspace
        self.user, self.env, self.isolation = user, dict(env or {}), isolation
        self.network = container.spec.network if network is None else network
        self.options: dict[str, Any] = {} if user is None else {"user": user}
        if group is not None:
            self.options["group"] = group
        self._turn = asyncio.Lock()
        self._shell: Shell | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until all that asked earlier are done; calls of one slot run one after another, in that order."""
        async with self._turn:
            yield

    async def aexec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - as in Container.exec
        on_output: OutputCallback | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ExecResult:
        """Run a command as the slot, in its workspace or in ``workdir`` (absolute, or relative to the workspace).

        Takes no turn of its own. The other arguments are those of :meth:`Container.aexec`.

        Raises:
            HyperRuntimeError: as :meth:`Container.aexec`.
        """
        return await self.container.aexec(
            args,
            timeout_s=timeout_s,
            env={**self.env, **(env or {})},
            workdir=posixpath.join(self.workspace, workdir or "").rstrip("/") or "/",
            input=input,
            on_output=on_output,
            output_limit_bytes=output_limit_bytes,
            **self.options,
        )

    def shell(self) -> Shell:
        """Return the bash that this slot keeps from call to call, a new one where there is none."""
        if self._shell is None:
            self._shell = self.container.shell(env=self.env, workdir=self.workspace, **self.options)
        return self._shell

    async def close(self) -> None:
        """End what it keeps between calls (its shell, with its jobs); it may be used again afterwards."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await asyncio.to_thread(shell.close)
