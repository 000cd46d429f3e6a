"""Send requests to a model's server over HTTP, and retry transient failures.

Why aiohttp and not the openai package: it is a dependency already, its import takes a tenth of the time, and requests
have fields that the types of the openai package do not know.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import attrs

from hyperruntime.errors import ContextLengthError, ModelError
from hyperruntime.gateway.answer.headers import retry_after
from hyperruntime.gateway.log.redact import Redactor
from hyperruntime.logs import get_logger

log = get_logger(__name__)

_AGAIN = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
_CONNECT_S, _BACKOFF_S, _BACKOFF_MAX_S = 15.0, 0.25, 20.0
_SHOWN = 500
_TOO_LONG = re.compile(
    r"context_length_exceeded|context length|longer than the model|too many tokens|prompt is too long", re.IGNORECASE
)


class ServerRefusedError(ModelError):
    """The server rejects a request; a retry would not help.

    Attributes:
        status: HTTP status.
        text: body of the response.
    """

    def __init__(self, message: str, status: int, text: str) -> None:
        """Store the status and the body with the message."""
        self.status, self.text = status, text
        super().__init__(message)


@attrs.frozen(kw_only=True)
class ServerOptions:
    """A model's server, with its timeouts.

    Attributes:
        base_url: such as ``http://127.0.0.1:8000/v1``.
        key_env: name of the environment variable that holds the API key; None sends no key.
        timeout_s: timeout of one request.
        patience_s: how long to retry a request after its first failure.
        connections: maximum open connections.
    """

    base_url: str
    key_env: str | None = None
    timeout_s: float = 900.0
    patience_s: float = 120.0
    connections: int = 256


class Server:
    """A server with a JSON API; connections are opened on first use, in the caller's event loop."""

    def __init__(self, options: ServerOptions) -> None:
        """Read the API key from the environment.

        Raises:
            ModelError: the variable of the key is not set.
        """
        self.url = options.base_url.rstrip("/")
        self._options = options
        self._redactor = Redactor()
        self._headers: dict[str, str] = {}
        if options.key_env is not None:
            key = os.environ.get(options.key_env, "").strip()
            if not key:
                raise ModelError(f"the model's server needs a key: set {options.key_env} in the environment")
            self._redactor.add(key)
            self._headers["Authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the JSON object of the response.

        Args:
            url: full URL of the endpoint.
            body: JSON values of the request.

        Raises:
            ContextLengthError: the server reports that the conversation is too long for the model.
            ServerRefusedError: the server rejects the request for another reason.
            ModelError: retries failed for ``patience_s``, or the response is not a JSON object.
        """
        data = json.dumps(body).encode()
        failing_since: float | None = None
        attempt = 0
        while True:
            attempt += 1
            wait_s = 0.0
            try:
                status, text, asked_s = await self._once(url, data)
                if status not in _AGAIN:
                    return self._read(url, status, text)
                problem, wait_s = f"status {status}: {text[:_SHOWN]}", asked_s
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                problem = self._redactor.clean_text(f"{type(error).__name__}: {error}".rstrip(": "))
            failing_since = failing_since or time.monotonic()
            wait_s = max(wait_s, _backoff(attempt))
            if time.monotonic() + wait_s - failing_since > self._options.patience_s:
                raise ModelError(
                    f"the model's server at {self.url} failed {attempt} times ({problem}); check that it runs there"
                )
            log.info("model asked again", url=url, attempt=attempt, wait_s=round(wait_s, 2), problem=problem[:200])
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Close connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _once(self, url: str, data: bytes) -> tuple[int, str, float]:
        """Return status, body without keys, and the seconds of ``Retry-After``."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._options.timeout_s, sock_connect=_CONNECT_S)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._options.connections),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "hyperruntime", "Content-Type": "application/json", **self._headers},
            )
        async with self._session.post(url, data=data, allow_redirects=False) as response:
            text = (await response.read()).decode(errors="replace")
            asked_s = retry_after(response.headers.get("Retry-After", ""))
        return response.status, self._redactor.clean_text(text), asked_s

    def _read(self, url: str, status: int, text: str) -> dict[str, Any]:
        if status != 200:
            if status in (400, 413, 422) and _TOO_LONG.search(text):
                raise ContextLengthError(f"the conversation is too long for the model: {text[:_SHOWN]}")
            raise ServerRefusedError(f"{url} answers with status {status}: {text[:_SHOWN]}", status, text)
        try:
            value = json.loads(text)
            value = json.loads(value) if isinstance(value, str) else value  # some hosts encode the body twice
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ModelError(f"{url} did not return a JSON object: {text[:_SHOWN]!r}; check the base URL")
        return value


def _backoff(attempt: int) -> float:
    longest = min(_BACKOFF_MAX_S, _BACKOFF_S * 2.0 ** min(attempt - 1, 20))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
