"""The pools of one node: the head starts them, and leases and uses their slots by calls."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.cluster.slots.held_commands import HeldCommands
from hyperruntime.cluster.slots.remote_exec import exec_for_head
from hyperruntime.errors import PoolClosedError, StaleLeaseError
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.wire.peer import Answer, Call, Handler

log = get_logger(__name__)


class PoolService:
    """The pools that heads have started on this node.

    Attributes:
        handlers: ``pool.start``, ``stop``, ``status``, ``shrink``, ``acquire``, ``release``,
            ``forget``, ``tool``, ``exec``, ``signal_group``, ``end_group`` and ``end_processes``,
            and those of :class:`HeldCommands`.
    """

    def __init__(self, context: NodeContext) -> None:
        """Start no pool yet."""
        self._held = HeldCommands(context, self._lease)
        self.handlers: Mapping[str, Handler] = {
            "pool.start": self._start,
            "pool.stop": self._stop,
            "pool.status": self._status,
            "pool.shrink": self._shrink,
            "pool.acquire": self._acquire,
            "pool.release": self._release,
            "pool.forget": self._forget,
            "pool.tool": self._tool,
            "pool.end_processes": self._end_processes,
            "pool.signal_group": self._signal_group,
            "pool.end_group": self._end_group,
            "pool.exec": self._exec,
            **self._held.handlers,
        }
        self._context = context
        self._pools: dict[str, SlotPool] = {}
        self._granted: dict[int, Lease] = {}

    async def close(self) -> None:
        """Stop all pools."""
        pools, self._pools = self._pools, {}
        for number in self._granted:
            self._held.end_all(number)
        await asyncio.gather(*(pool.stop() for pool in pools.values()))
        await self._held.close()

    async def _start(self, call: Call) -> Answer:
        config: PoolConfig = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
        pool = self._pools[str(call.args["pool"])] = SlotPool(await self._context.runtime(), config)
        await pool.start()
        return Answer(attrs.asdict(pool.status()))

    async def _stop(self, call: Call) -> Answer:
        pool = self._pools.pop(str(call.args["pool"]), None)
        if pool is not None:
            ended = [number for number, lease in self._granted.items() if lease.pool is pool]
            for number in ended:
                del self._granted[number]
                self._held.end_all(number)
            await pool.stop()
        return Answer()

    async def _status(self, call: Call) -> Answer:
        return Answer(attrs.asdict(self._pool(call).status()))

    async def _shrink(self, call: Call) -> Answer:
        self._pool(call).shrink()
        return Answer()

    async def _acquire(self, call: Call) -> Answer:
        pool = self._pool(call)
        slot = await pool.acquire(call.args["task"], timeout_s=call.args["timeout_s"])
        self._granted[call.args["grant"]] = Lease(pool, slot)
        return Answer(attrs.asdict(slot))

    async def _release(self, call: Call) -> Answer:
        lease = self._lease(call)
        del self._granted[call.args["grant"]]
        try:
            await self._pool(call).release(lease.slot, reset_workspace=bool(call.args["reset"]))
        finally:
            if call.args["reset"]:  # else the slot is kept with its processes
                self._held.end_all(call.args["grant"])
        return Answer()

    async def _forget(self, call: Call) -> Answer:
        """End a lease if it was granted; the head does not know whether it was."""
        lease = self._granted.pop(call.args["grant"], None)
        if lease is not None:
            await self._pool(call).release_if_held(lease.slot)
            self._held.end_all(call.args["grant"])
        return Answer()

    async def _tool(self, call: Call) -> Answer:
        policy = pickle.loads(call.body) if call.body else None  # noqa: S301 - of the head
        args = call.args["args"]
        timeout_s = call.args["timeout_s"]
        result = await self._lease(call).tool(
            call.args["tool"], args, timeout_s=timeout_s, policy=policy
        )
        await self._context.check_not_ended(result.exit_code)
        return Answer(attrs.asdict(result))

    async def _exec(self, call: Call) -> Answer:
        answer = await exec_for_head(call, self._context.head_call, self._lease(call).exec)
        await self._context.check_not_ended(answer.value["exit_code"])
        return answer

    async def _signal_group(self, call: Call) -> Answer:
        return Answer(await self._lease(call).signal_group(call.args["group"], call.args["number"]))

    async def _end_group(self, call: Call) -> Answer:
        return Answer(await self._lease(call).end_group(call.args["group"]))

    async def _end_processes(self, call: Call) -> Answer:
        await self._lease(call).end_processes()
        return Answer()

    def _lease(self, call: Call) -> Lease:
        lease = self._granted.get(call.args["grant"])
        if lease is None:
            raise StaleLeaseError("the slot was released; acquire another one")
        return lease

    def _pool(self, call: Call) -> SlotPool:
        pool = self._pools.get(name := str(call.args["pool"]))
        if pool is None:
            raise PoolClosedError(f"pool {name!r} is not started on this node")
        return pool


def to_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model as JSON values; what is not JSON becomes text."""
    return json_object(json.dumps(value, default=str).encode()) or {}
