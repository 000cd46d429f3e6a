"""The node's end of rollouts: it makes trajectories for the head, and sends it each line of their
journals, and at the end the record.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.cluster.rollouts.relayed_model import RelayedModel
from hyperruntime.cluster.rollouts.relayed_model import trajectory as trajectory_id
from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.host.batch_job import SETTLE_S, TERMINATED
from hyperruntime.logs import get_logger
from hyperruntime.option_fields import from_json
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.models import open_model
from hyperruntime.rollout.models.server import check_server
from hyperruntime.rollout.run.episode import EpisodeContext, Job, run_episode
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, complete_parts, open_here
from hyperruntime.rollout.run.store import recordable
from hyperruntime.rollout.run_files.turn_journal import CALL, TurnJournal, valid_lines
from hyperruntime.wire.peer import Answer, Call, Handler, Peer

if TYPE_CHECKING:
    from hyperruntime.cluster.node_services import NodeContext

log = get_logger(__name__)

OPEN = "rollout.open"
RUN = "rollout.run"
END = "rollout.end"
CLOSE = "rollout.close"
# methods of the head; each name is followed by the id of the run
MODEL = "rollout.model"
IMAGE = "rollout.image"
_TURN = b'{"is":"turn"'


@attrs.define
class _OpenRun:
    context: EpisodeContext
    items: Mapping[str, Item]
    stack: AsyncExitStack


class EpisodeService:
    """Makes trajectories on this node."""

    def __init__(self, context: NodeContext) -> None:
        """Open nothing yet.

        Args:
            context: of the node.
        """
        self._node = context
        self._runs: dict[str, _OpenRun] = {}
        self.handlers: Mapping[str, Handler] = {
            OPEN: self._open,
            RUN: self._run,
            END: self._end,
            CLOSE: self._close,
        }

    async def close(self) -> None:
        """Close the slots of all runs."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            with suppress(HyperRuntimeError):
                await run.stack.aclose()

    async def _open(self, call: Call) -> Answer:
        """Load a run's environment and open its slots; return how many trajectories may be made at
        once.
        """
        args = call.args
        # options may name files relative to it
        await asyncio.to_thread(_enter_if_there, args["directory"])
        options = from_json(RolloutOptions, args["options"], strict=True)
        container = attrs.evolve(options.container, env={**options.container.env, **args["env"]})
        options = attrs.evolve(options, container=container, env_names=())
        async with AsyncExitStack() as stack:
            model = await self._model(stack, options, args)
            parts = await complete_parts(stack, options, Parts(model=model))
            items = await asyncio.to_thread(
                lambda: {item.id: item for item in parts.environment.items()}
            )
            runtime = await self._node.runtime()
            ask = partial(self._fetch, asyncio.get_running_loop(), args["run"])
            context = await stack.enter_async_context(open_here(runtime, options, parts, ask))
            self._runs[args["run"]] = _OpenRun(context, items, stack.pop_all())
        return Answer({"capacity": context.capacity})

    def _fetch(self, loop: asyncio.AbstractEventLoop, run: str, image: str) -> None:
        """Ask the head for an image, in a thread, and wait until it is here."""
        asyncio.run_coroutine_threadsafe(
            self._head.call(f"{IMAGE}.{run}", {"image": image}), loop
        ).result()

    async def _model(
        self, stack: AsyncExitStack, options: RolloutOptions, args: Mapping[str, Any]
    ) -> Model:
        """Return the model's own client if its server can be reached from here, else one that asks
        the head.
        """
        if args["direct"] and options.model is not None:
            try:
                await check_server(options.model)
                model = await asyncio.to_thread(open_model, options.model)
                stack.push_async_callback(model.close)
                return model
            except HyperRuntimeError as error:
                log.info("model asked through the head", reason=str(error))
        return RelayedModel(
            args["model"], self._head, f"{MODEL}.{args['run']}", remembers=args["remembers"]
        )

    async def _run(self, call: Call) -> Answer:
        """Make one attempt at a trajectory; the answer has its record, or says ``ends`` if the node
        is ending, or the run is not open.

        The call's input is the journal of earlier attempts; its events are new lines.
        """
        run = self._runs.get(call.args["run"])
        if run is None:
            return Answer({"ends": True})
        making = asyncio.ensure_future(self._make(run, call))
        told = asyncio.ensure_future(self._node.told_to_end.wait())
        both: set[asyncio.Future[Any]] = {making, told}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if told.done() or call.args["run"] not in self._runs:  # its slots were closed
                return Answer({"ends": True, "told": told.done()})
            return Answer({}, await making)
        finally:
            told.cancel()
            making.cancel()
            await asyncio.wait([making])  # its slot is released
            _ = making.cancelled() or making.exception()

    async def _make(self, run: _OpenRun, call: Call) -> bytes:
        """Make an attempt at a trajectory; emit the lines of its journal, and return its record.

        A batch system that ends the node's job sends SIGTERM to the processes in containers too. So
        the record is sent with a delay: one that SIGTERM caused is never sent. A command that
        SIGTERM ended waits as long, so that the model is not asked about it. The head takes back
        lines of the journal.
        """
        args = call.args
        item = run.items.get(args["item"])
        if item is None:
            raise SpecError("item", args["item"], "an item of the environment, also on the nodes")
        is_relayed = isinstance(run.context.model, RelayedModel)
        trajectory_id.set(f"{item.id}/{args['index']}")

        async def write(data: bytes) -> None:
            if _says_terminated(data):
                await self._node.check_not_ended(TERMINATED)
            if is_relayed:  # the head has journaled the turns that it was asked for
                lines = data.splitlines(keepends=True)
                data = b"".join(line for line in lines if not line.startswith(_TURN))
            if data:
                await call.emit(Answer(body=data))

        assert call.read is not None, "the head gives the journal"
        before = bytearray()
        while piece := await call.read():
            before += piece
        journal = TurnJournal(write, bytes(before), args["attempts"])
        job = Job(item=item, index=args["index"], journal=journal)
        trajectory = await run_episode(run.context, job)
        await asyncio.sleep(SETTLE_S)
        return recordable(trajectory)[1]

    async def _end(self, call: Call) -> Answer:
        """Remove what is kept for an item; no trajectory of it comes any more."""
        run = self._runs.get(call.args["run"])
        item = None if run is None else run.items.get(call.args["item"])
        if run is not None and item is not None:
            await run.context.end(item)
        return Answer()

    async def _close(self, call: Call) -> Answer:
        run = self._runs.pop(call.args["run"], None)
        if run is not None:
            await run.stack.aclose()
        return Answer()

    @property
    def _head(self) -> Peer:
        assert self._node.head is not None, "set by the node server"
        return self._node.head


def _says_terminated(data: bytes) -> bool:
    """Return whether a journal's lines have the output of a command that SIGTERM may have ended."""
    code = str(TERMINATED)
    return code.encode() in data and any(
        entry["is"] == CALL and code in entry["answer"] for _, entry in valid_lines(data)
    )


def _enter_if_there(directory: str) -> None:
    if os.path.isdir(directory):
        os.chdir(directory)
