"""A tool of verl's own agent loop: shell commands in a slot."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import MutableMapping
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from hyperruntime.adapters.shared_runtime import ensure_image, shared_runtime
from hyperruntime.adapters.slot_session import SlotSession
from hyperruntime.pool.manager import PoolManager
from hyperruntime.pool.tools import tool_schemas
from hyperruntime.pool.tools.agent_tools import SlotTools
from hyperruntime.pool.values.profiles import Profiles, parse_profile

_NAMES = ("bash",)


class BashTool(BaseTool):
    """Runs the calls of one trajectory in one slot; all calls are on one event loop, as in verl's
    workers.

    ``config`` has the keys of a pool, such as ``image``, ``slots_per_container`` and ``limits``;
    ``runtime`` is the engine. verl's loop makes an instance for each call; the slot is then that of
    the trajectory, and is released when the trajectory has ended. Else it is that of the instance.
    A slot that is lost is replaced with the next call.
    """

    def __init__(
        self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        """Configure the pool, which starts with the first call; no ``tool_schema`` means that of
        ``bash``.
        """
        super().__init__(
            config, tool_schema or OpenAIFunctionToolSchema.model_validate(tool_schemas(_NAMES)[0])
        )
        given = {key: value for key, value in config.items() if key not in ("type", "runtime")}
        runtime = shared_runtime(config.get("runtime"))
        given["image"] = ensure_image(runtime, given.get("image", "base"))
        self._pools = PoolManager(runtime, Profiles.of(parse_profile("verl", given)))
        self._of_instances: dict[str, SlotSession] = {}
        self._of_trajectories: MutableMapping[Any, SlotSession] = weakref.WeakKeyDictionary()

    async def create(
        self,
        instance_id: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[str, ToolResponse]:
        """Return the id of an instance; a slot is leased with the first call."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        **kwargs: Any,  # noqa: ANN401 - as in verl
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Run a command; return its output as the agents of rollouts see it, no reward, and no
        metrics.
        """
        pool, trajectory = await self._pools.pool(), kwargs.get("agent_data")
        known, owner = (
            (self._of_instances, instance_id)
            if trajectory is None
            else (self._of_trajectories, trajectory)
        )
        if owner not in known:
            known[owner] = SlotSession(pool)
            if trajectory is not None:
                weakref.finalize(trajectory, _end_soon, asyncio.get_running_loop(), known[owner])
        text = await SlotTools(known[owner].call).tool_handler("bash", parameters, instance_id)
        return ToolResponse(text=text), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:  # noqa: ANN401 - as in verl
        """Release the slot of an instance; its files and processes are removed."""
        session = self._of_instances.pop(instance_id, None)
        if session is not None:
            await session.end()


def _end_soon(loop: asyncio.AbstractEventLoop, session: SlotSession) -> None:
    """Release the slot of a trajectory that has ended; the thread that drops it calls this."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(session.end(), loop)
