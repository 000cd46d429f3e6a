"""A client of atroposlib's API server, for environments and for trainers.

Source: atroposlib 0.4.0, ``run-api``.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from hyperruntime.errors import TrainerError

_TIMEOUT_S = 60.0
_GZIP_ABOVE_BYTES = 64 * 1024


class AtroposApi:
    """One API server; every method raises ``TrainerError`` if the server cannot be reached or reports an error.

    Attributes:
        url: address of the server, without a trailing slash.
    """

    def __init__(self, url: str) -> None:
        """Set the address; the first call connects."""
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def register(self, *, batch_size: int, max_token_len: int, num_steps: int, **more: Any) -> int:  # noqa: ANN401
        """Register as the trainer; return the id that the server assigns.

        Args:
            batch_size: sequences per batch.
            max_token_len: maximum tokens of a sequence.
            num_steps: number of batches that the trainer will request.
            more: other fields of ``/register``.
        """
        fields = {
            "wandb_group": "",
            "wandb_project": "",
            "checkpoint_dir": "",
            "save_checkpoint_interval": 0,
            "starting_step": 0,
        }
        sizes = {"batch_size": batch_size, "max_token_len": max_token_len, "num_steps": num_steps}
        answer = await self._call("POST", "/register", fields | sizes | more)
        return int(answer["uuid"])

    async def batch(self) -> list[dict[str, Any]] | None:
        """Return the next batch (a list of groups), or None if there are too few groups; the first call starts the run.

        Raises:
            TrainerError: the caller is not registered, or the server cannot be reached.
        """
        answer = await self._call("GET", "/batch")
        if answer.get("status") == "error":
            raise TrainerError(f"{self.url} returned no batch: {answer.get('message')}; register first")
        batch: list[dict[str, Any]] | None = answer.get("batch")
        return batch

    async def register_env(
        self, *, name: str, group_size: int, max_token_length: int, weight: float = 1.0
    ) -> dict[str, Any]:
        """Register as an environment; ``status`` of the answer is ``success`` once a trainer has started.

        Args:
            name: desired name of the environment.
            group_size: sequences per group.
            max_token_length: maximum tokens of a sequence.
            weight: weight of this environment among others.
        """
        fields = {
            "desired_name": name,
            "group_size": group_size,
            "max_token_length": max_token_length,
            "weight": weight,
        }
        return await self._call("POST", "/register-env", fields)

    async def disconnect_env(self, env_id: int) -> None:
        """Unregister an environment."""
        await self._call("POST", "/disconnect-env", {"env_id": env_id})

    async def scored_data(self, group: Mapping[str, Any], *, env_id: int | None = None) -> dict[str, Any]:
        """Send one group; ``status`` of the answer is ``received``, or ``buffered`` for an incomplete group.

        Args:
            group: a value of ``to_scored_data``.
            env_id: id of the registered environment, or None.
        """
        return await self._call("POST", "/scored_data", {**group, "env_id": env_id})

    async def status(self) -> dict[str, Any]:
        """Return ``current_step`` and ``queue_size``."""
        return await self._call("GET", "/status")

    async def info(self) -> dict[str, Any]:
        """Return ``batch_size`` and ``max_token_len``; both are -1 if no trainer is registered."""
        return await self._call("GET", "/info")

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data, headers = None, {}
        if body is not None:
            data, headers = json.dumps(body, allow_nan=False).encode(), {"Content-Type": "application/json"}
            if len(data) > _GZIP_ABOVE_BYTES:
                data = await asyncio.to_thread(gzip.compress, data, 1)
                headers["Content-Encoding"] = "gzip"
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        try:
            async with self._session.request(method, f"{self.url}{path}", data=data, headers=headers) as response:
                text = await response.text()
                return self._answer(path, response.status, text)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise TrainerError(
                f"no atroposlib API server answers at {self.url}: {what}; start `run-api` there"
            ) from error

    def _answer(self, path: str, status: int, text: str) -> dict[str, Any]:
        if status >= 400:
            raise TrainerError(f"{self.url}{path} failed with HTTP {status}: {' '.join(text.split())[:300]}")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise TrainerError(f"{self.url}{path} is not an atroposlib API server; check the address")
        return answer
