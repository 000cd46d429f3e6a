"""A slot for a client that only calls tools: leased with its first call, replaced when it is
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError, SandboxLostError, StaleLeaseError
from hyperruntime.logs import get_logger
from hyperruntime.pool.tools.dispatch import failed
from hyperruntime.pool_values.config import ToolPolicy
from hyperruntime.pool_values.results import ExecutionResult, Slot
from hyperruntime.sandbox import Pool

log = get_logger(__name__)

_LOST = (
    "this session lost its container, with all files and processes in it; the next call gets a "
    "new one"
)


class SlotSession:
    """The slot of one client; ``async with`` releases it at the end."""

    def __init__(self, pool: Pool, policy: ToolPolicy) -> None:
        """Make a session without a slot.

        Args:
            pool: the started pool.
            policy: limits and rights of all calls, in place of the pool's.
        """
        self._pool = pool
        self._policy = policy
        self._slot: Slot | None = None
        self._leasing = asyncio.Lock()

    async def __aenter__(self) -> SlotSession:
        """Return the session."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        await self.end()

    async def call(self, tool: str, args: Mapping[str, Any]) -> ExecutionResult:
        """Call a tool; an error is a result too, with one sentence for the client.

        After the loss of a container, the call that finds it fails, because its effects are
        unknown, and the next call gets a new slot.

        Args:
            tool: the tool's name, not trusted.
            args: its arguments, not trusted.
        """
        slot = None
        try:
            async with self._leasing:
                slot = self._slot = self._slot or await self._pool.acquire()
            return await self._pool.execute(slot, tool, args, policy=self._policy)
        except (SandboxLostError, StaleLeaseError) as error:
            log.warning("session lost its slot", why=str(error))
            if self._slot is slot:  # no other call has found it before
                await self.end()
            return attrs.evolve(failed(error), error=_LOST)
        except HyperRuntimeError as error:
            return failed(error)

    async def end(self) -> None:
        """Release the slot, which ends its processes and removes its files; may be called again."""
        slot, self._slot = self._slot, None
        if slot is not None:
            await self._pool.release_if_held(slot)
