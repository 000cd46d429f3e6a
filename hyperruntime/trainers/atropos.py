"""The trainer ``atropos``: sends groups to an atroposlib API server, which passes them to its trainer.

The server never hands out a group with more sequences than the registered group size, so such groups are declined.

Source: atroposlib 0.4.0, ``atroposlib/api``.
"""

from __future__ import annotations

import asyncio
import time

import attrs

from hyperruntime.errors import TrainerError
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hyperruntime.rollout.training_data.scored_data import to_scored_data
from hyperruntime.trainers import Receipt, Trainer
from hyperruntime.trainers.atropos_api import AtroposApi

_POLL_S = 0.2


@attrs.define(kw_only=True)
class Atropos:
    """Sends groups to an API server as one of its environments; ``start`` sends the first request.

    Args:
        url: URL of the API server.
        environment: name of the environment on the server.
        group_size: maximum sequences of a group.
        max_token_length: maximum tokens of a sequence.
        weight: weight of this environment among others.
        wait_s: how long to wait for a trainer to start.
    """

    name = "atropos"
    _url: str = "http://127.0.0.1:8000"
    _environment: str = "hyperruntime"
    _group_size: int = 8
    _max_token_length: int = 32768
    _weight: float = 1.0
    _wait_s: float = 60.0
    _api: AtroposApi = attrs.field(
        init=False, default=attrs.Factory(lambda self: AtroposApi(self._url), takes_self=True)
    )
    _env_id: int | None = attrs.field(init=False, default=None)

    async def start(self) -> int:
        """Wait until a trainer has requested its first batch, and register as an environment; return its step.

        Raises:
            TrainerError: the server cannot be reached, or no trainer starts within ``wait_s``.
        """
        try:
            return await self._register()
        except BaseException:
            await self._api.close()
            raise

    async def _register(self) -> int:
        deadline = time.monotonic() + self._wait_s
        while True:
            answer = await self._api.register_env(
                desired_name=self._environment,
                group_size=self._group_size,
                max_token_length=self._max_token_length,
                weight=self._weight,
            )
            if answer.get("status") == "success":
                self._env_id = int(answer["env_id"])
                return int(answer.get("starting_step", 0))
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"no trainer started at {self._api.url} within {self._wait_s:g} s: the server reports"
                    f" {answer.get('status')!r}; start a trainer that requests batches, or increase wait_s"
                )
            await asyncio.sleep(_POLL_S)

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Send a group; decline a group that the server would never hand out, or that is too long or has no tokens.

        Raises:
            TrainerError: ``start`` was not called, or the server cannot be reached.
        """
        if self._env_id is None:
            raise TrainerError("groups can only be submitted after start(); call start() first")
        reason = self._unusable(group)
        if reason:
            return Receipt(accepted=False, detail=reason)
        answer = await self._api.scored_data(to_scored_data(group), env_id=self._env_id)
        status = await self._api.status()
        held = "held by the server until it has a full group" if answer.get("status") == "buffered" else ""
        return Receipt(accepted=True, step=int(status.get("current_step", 0)), detail=held)

    async def close(self) -> None:
        """Unregister this environment and close connections."""
        try:
            if self._env_id is not None:
                await self._api.disconnect_env(self._env_id)
        except TrainerError:
            pass  # a server that is gone has no registrations
        finally:
            self._env_id = None
            await self._api.close()

    def _unusable(self, group: ScoredGroup) -> str:
        sequences = len(group.samples)
        longest = max((len(sample.segment.ids) for sample in group.samples), default=0)
        if not sequences:
            return "no trajectory has a token record"
        if sequences > self._group_size:
            return (
                f"{sequences} sequences are more than the registered group_size {self._group_size};"
                " export one sequence for each trajectory (segments=last)"
            )
        if longest > self._max_token_length:
            return f"a sequence of {longest} tokens is longer than max_token_length {self._max_token_length}"
        return ""


_: type[Trainer] = Atropos
