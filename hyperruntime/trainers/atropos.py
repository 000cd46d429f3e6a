"""The trainer ``atropos``: sends groups to an atroposlib API server, which passes them to its
trainer.

The server never hands out a group with more sequences than the registered group size, so such
groups are declined.

Source: atroposlib 0.4.0, ``atroposlib/api``.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import attrs

from hyperruntime.errors import TrainerError
from hyperruntime.json_values import json_object
from hyperruntime.rollout.training_data.samples import ScoredGroup
from hyperruntime.rollout.training_data.scored_data import to_scored_data
from hyperruntime.trainers import Receipt, Trainer

_POLL_S = 0.2
_TIMEOUT_S = 60.0
_GZIP_ABOVE_BYTES = 64 * 1024


class AtroposApi:
    """A client of one API server.

    Attributes:
        url: address of the server, without a trailing slash.
    """

    def __init__(self, url: str) -> None:
        """Set the address; the first call connects."""
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of the response.

        Raises:
            TrainerError: the server cannot be reached or reports an error.
        """
        data = None
        headers = {}
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers = {"Content-Type": "application/json"}
            if len(data) > _GZIP_ABOVE_BYTES:
                data = await asyncio.to_thread(gzip.compress, data, 1)
                headers["Content-Encoding"] = "gzip"
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        try:
            async with self._session.request(
                method, f"{self.url}{path}", data=data, headers=headers
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise TrainerError(
                f"no atroposlib API server answers at {self.url}: {what}; start `run-api` there"
            ) from error
        if response.status >= 400:
            raise TrainerError(
                f"{self.url}{path} failed with HTTP {response.status}: "
                f"{' '.join(text.split())[:300]}"
            )
        answer = json_object(text)
        if answer is None:
            raise TrainerError(
                f"{self.url}{path} is not an atroposlib API server; check the address"
            )
        return answer

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


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
        """Wait until a trainer has requested its first batch, and register as an environment;
        return its step.

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
        fields = {
            "desired_name": self._environment,
            "group_size": self._group_size,
            "max_token_length": self._max_token_length,
            "weight": self._weight,
        }
        while True:
            answer = await self._api.call("POST", "/register-env", fields)
            if answer.get("status") == "success":
                self._env_id = int(answer["env_id"])
                return int(answer.get("starting_step", 0))
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"no trainer started at {self._api.url} within {self._wait_s:g} s: the "
                    f"server reports {answer.get('status')!r}; start a trainer that requests "
                    "batches, or increase wait_s"
                )
            await asyncio.sleep(_POLL_S)

    async def submit(self, group: ScoredGroup) -> Receipt:
        """Send a group; decline a group that the server would never hand out, or that is too long
        or has no tokens.

        Raises:
            TrainerError: ``start`` was not called, or the server cannot be reached.
        """
        if self._env_id is None:
            raise TrainerError("groups can only be submitted after start(); call start() first")
        reason = self._unusable(group)
        if reason:
            return Receipt(accepted=False, detail=reason)
        answer = await self._api.call(
            "POST", "/scored_data", {**to_scored_data(group), "env_id": self._env_id}
        )
        status = await self._api.call("GET", "/status")
        held = (
            "held by the server until it has a full group"
            if answer.get("status") == "buffered"
            else ""
        )
        return Receipt(accepted=True, step=int(status.get("current_step", 0)), detail=held)

    async def close(self) -> None:
        """Unregister this environment and close connections."""
        try:
            if self._env_id is not None:
                await self._api.call("POST", "/disconnect-env", {"env_id": self._env_id})
        except TrainerError:
            pass  # a server that is gone has no registrations
        finally:
            self._env_id = None
            await self._api.close()

    def _unusable(self, group: ScoredGroup) -> str:
        sequences = len(group.samples)
        if not sequences:
            return "no trajectory has a token record"
        if sequences > self._group_size:
            return (
                f"{sequences} sequences are more than the registered group_size {self._group_size};"
                " export one sequence for each trajectory (segments=last)"
            )
        if group.longest > self._max_token_length:
            return (
                f"a sequence of {group.longest} tokens is longer than max_token_length "
                f"{self._max_token_length}"
            )
        return ""


_: type[Trainer] = Atropos
