"""The pools of one node: the head starts them, and leases and uses their slots by calls."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from hyperruntime.cluster.node_services import NodeContext
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import PoolClosedError, StaleLeaseError
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.pool.pool import SlotPool
from hyperruntime.pool_values.config import PoolConfig
from hyperruntime.remote.handlers import VERBS, Verb
from hyperruntime.remote.held import Target
from hyperruntime.settings.reader import read
from hyperruntime.wire.peer import Answer, Call, Handler

log = get_logger(__name__)
_RELEASED = "the slot was released; acquire another one"


class PoolService:
    """The pools that heads have started on this node.

    Attributes:
        handlers: ``pool.start``, ``stop``, ``status``, ``shrink``, ``acquire``, ``release`` and
            ``forget``, and the verbs of a sandbox, :data:`~hyperruntime.remote.handlers.VERBS`.
    """

    def __init__(self, context: NodeContext) -> None:
        """Start no pool yet."""
        self.handlers: Mapping[str, Handler] = {
            "pool.start": self._start,
            "pool.stop": self._stop,
            "pool.status": self._status,
            "pool.shrink": self._shrink,
            "pool.acquire": self._acquire,
            "pool.release": self._release,
            "pool.forget": self._forget,
            **{name: partial(self._use, verb) for name, verb in VERBS.items()},
        }
        self._context = context
        self._pools: dict[str, SlotPool] = {}
        self._targets: dict[str, Target[Lease]] = {}  # of leases, and of kept slots
        self._ending = BackgroundTasks("commands of released leases")

    async def close(self) -> None:
        """Stop all pools."""
        pools, self._pools = self._pools, {}
        for name in tuple(self._targets):
            self._end_held(name)
        await asyncio.gather(*(pool.stop() for pool in pools.values()))
        await self._ending.wait()

    async def _use(self, verb: Verb, call: Call) -> Answer:
        """Answer a verb of a sandbox."""
        target = self._target(call)
        answer = await verb.handler(target, read(verb.request, call.args), call)
        if isinstance(answer.value, Mapping) and "exit_code" in answer.value:
            await self._context.check_not_ended(answer.value["exit_code"])
        return answer

    async def _start(self, call: Call) -> Answer:
        config: PoolConfig = pickle.loads(call.body)  # noqa: S301 - of the head, which this node trusts
        pool = self._pools[str(call.args["pool"])] = SlotPool(await self._context.runtime(), config)
        await pool.start()
        return Answer(attrs.asdict(pool.status()))

    async def _stop(self, call: Call) -> Answer:
        pool = self._pools.pop(str(call.args["pool"]), None)
        if pool is not None:
            for name, target in tuple(self._targets.items()):
                if target.sandbox.pool is pool:
                    self._end_held(name)
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
        self._targets[call.args["container"]] = Target(Lease(pool, slot))
        return Answer(attrs.asdict(slot))

    async def _release(self, call: Call) -> Answer:
        name = call.args["container"]
        target = self._target(call)
        if target.is_released:  # and its slot is kept
            raise StaleLeaseError(_RELEASED)
        target.is_released = True
        try:
            await target.sandbox.release(reset_workspace=bool(call.args["reset"]))
        finally:
            # else the slot is kept with its processes
            if call.args["reset"] or not target.held:
                self._end_held(name)
        return Answer()

    async def _forget(self, call: Call) -> Answer:
        """End a lease if it was granted; the head does not know whether it was."""
        with suppress(StaleLeaseError):
            await self._release(call)
        return Answer()

    def _target(self, call: Call) -> Target[Lease]:
        target = self._targets.get(call.args["container"])
        if target is None:
            raise StaleLeaseError(_RELEASED)
        return target

    def _end_held(self, name: str) -> None:
        if (target := self._targets.pop(name, None)) is not None:
            target.release(self._ending)

    def _pool(self, call: Call) -> SlotPool:
        pool = self._pools.get(name := str(call.args["pool"]))
        if pool is None:
            raise PoolClosedError(f"pool {name!r} is not started on this node")
        return pool


def to_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model as JSON values; what is not JSON becomes text."""
    return json_object(json.dumps(value, default=str).encode()) or {}
