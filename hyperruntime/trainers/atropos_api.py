"""A client of atroposlib's API server, for environments.

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

    async def register_env(self, **fields: str | float) -> dict[str, Any]:
        """Register as an environment; ``status`` of the answer is ``success`` once a trainer has started.

        Args:
            fields: ``desired_name``, ``group_size`` (sequences per group), ``max_token_length`` (tokens of a sequence)
                and ``weight`` (of this environment among others).
        """
        return await self.call("POST", "/register-env", fields)

    async def disconnect_env(self, env_id: int) -> None:
        """Unregister an environment."""
        await self.call("POST", "/disconnect-env", {"env_id": env_id})

    async def scored_data(self, group: Mapping[str, Any], *, env_id: int | None = None) -> dict[str, Any]:
        """Send one group; ``status`` of the answer is ``received``, or ``buffered`` for an incomplete group.

        Args:
            group: a value of ``to_scored_data``.
            env_id: id of the registered environment, or None.
        """
        return await self.call("POST", "/scored_data", {**group, "env_id": env_id})

    async def status(self) -> dict[str, Any]:
        """Return ``current_step`` and ``queue_size``."""
        return await self.call("GET", "/status")

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the response."""
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
