"""Send requests to a model's server over HTTP, and retry transient failures.

Why aiohttp and not the openai package: it is a dependency already, its import takes a tenth of the
time, and requests have fields that the types of the openai package do not know.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import attrs

from hyperruntime.concurrency.retry import SHOULD_RETRY, with_retries
from hyperruntime.errors import ContextLengthError, ModelError
from hyperruntime.gateway.answer.headers import retry_after
from hyperruntime.gateway.answer.judgement import Judgement, Kind, judge, read_body
from hyperruntime.logs import get_logger
from hyperruntime.ports.site_proxy import site_proxy
from hyperruntime.secrets.redact import Redactor

if TYPE_CHECKING:
    from hyperruntime.rollout.models import ModelOptions

log = get_logger(__name__)

_TRANSPORT = (aiohttp.ClientError, TimeoutError, OSError)
_CONNECT_S = 15.0
_BACKOFF_S = 0.25
_BACKOFF_MAX_S = 20.0
_CONNECTIONS = 256
_REACH_S = 4.0
_REACH_ONCE_S = 3.0
_REACH_CONNECT_S = 2.5
_REACH_PAUSE_S = 0.5
_GATEWAY_STATUSES = (502, 503, 504)  # of a proxy whose server is down
_SHOWN = 500
_OK = 200
_ODD_ANSWERS = 4  # unusable answers of status 200 to one request; more hardly help


class ServerRefusedError(ModelError):
    """The server rejects a request; a retry would not help.

    Attributes:
        status: HTTP status, or the status that an error inside an answer of status 200 means.
        text: body of the response.
    """

    def __init__(self, message: str, status: int, text: str) -> None:
        """Store the status and the body with the message."""
        self.status = status
        self.text = text
        super().__init__(message)


@attrs.frozen(kw_only=True)
class _Answer:
    """One response.

    Attributes:
        status: HTTP status.
        text: body, without keys.
        value: parsed body, or None if it is not JSON.
        judgement: whether the answer is usable.
        asked_s: seconds of ``Retry-After``, or 0; None if a retry would not help.
    """

    status: int
    text: str
    value: Any
    judgement: Judgement
    asked_s: float | None


class Server:
    """A server with a JSON API; connections are opened on first use, in the caller's event loop."""

    def __init__(self, options: ModelOptions) -> None:
        """Read the API key and the proxy from the environment.

        Raises:
            ModelError: the variable of the key is not set.
            GatewayConfigError: as of :func:`site_proxy`.
        """
        self.url = options.base_url.rstrip("/")
        self._timeout_s = options.timeout_s
        self._patience_s = options.patience_s
        self._redactor = Redactor()
        self._headers: dict[str, str] = {}
        if options.key_env is not None:
            key = os.environ.get(options.key_env, "").strip()
            if not key:
                raise ModelError(
                    f"the model's server needs a key: set {options.key_env} in the environment"
                )
            self._redactor.add(key)
            self._headers["Authorization"] = f"Bearer {key}"
        self._proxy = site_proxy(self.url)
        self._redactor.add(urlsplit(self._proxy or "").password or "")
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the JSON object of a usable answer.

        Args:
            url: full URL of the endpoint.
            path: path by which the endpoint's answers are judged.
            body: JSON values of the request.

        Raises:
            ContextLengthError: the server reports that the conversation is too long for the model.
            ServerRefusedError: the server rejects the request for another reason.
            ModelError: retries failed for ``patience_s``, or the server repeated answers that are
                not usable.
        """
        data = json.dumps(body).encode()
        until = 0.0
        made = 0
        odd = 0

        async def attempt() -> _Answer:
            nonlocal made, odd
            made += 1
            answer = await self._once(url, path, data)
            odd += answer.status == _OK and answer.judgement.kind is not Kind.USABLE
            return attrs.evolve(answer, asked_s=None) if odd >= _ODD_ANSWERS else answer

        def gives_up(_: int, next_at: float) -> bool:
            nonlocal until
            until = until or time.monotonic() + self._patience_s
            return next_at > until

        def failed(outcome: _Answer | Exception) -> ModelError:
            why = f"failed {made} times ({self._problem(outcome)}); check that it runs there"
            return ModelError(f"the model's server at {self.url} {why}")

        try:
            answer = await with_retries(
                attempt,
                first_s=_BACKOFF_S,
                longest_s=_BACKOFF_MAX_S,
                errors=_TRANSPORT,
                asked_s=lambda answer: answer.asked_s,
                gives_up=gives_up,
                before_wait=self._note,
            )
        except _TRANSPORT as error:
            raise failed(error) from None
        if answer.judgement.retry:
            raise failed(answer)
        return _value_of(url, answer)

    async def check(self) -> None:
        """Check that a server accepts connections at the base URL; it may be busy, and send any
        status but 502 to 504.

        Raises:
            ModelError: no server answers within a few seconds, or a proxy reports that its server
                is down.
        """
        until = time.monotonic() + _REACH_S
        while problem := await self._silence():
            if time.monotonic() > until:
                raise ModelError(
                    f"no model server answers at {self.url} ({problem}); start it, or correct "
                    "--base-url"
                )
            await asyncio.sleep(_REACH_PAUSE_S)

    async def _silence(self) -> str:
        """Return why no server answers, or "" if one does."""
        timeout = aiohttp.ClientTimeout(total=_REACH_ONCE_S, connect=_REACH_CONNECT_S)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=timeout, headers={"User-Agent": "hyperruntime"}
                ) as session,
                session.get(self.url, allow_redirects=False, proxy=self._proxy) as response,
            ):
                return f"status {response.status}" if response.status in _GATEWAY_STATUSES else ""
        except aiohttp.ServerTimeoutError as error:
            return self._problem(error)
        except TimeoutError:
            return ""  # connected: it is busy
        except _TRANSPORT as error:
            return self._problem(error)

    def _note(self, outcome: _Answer | Exception, attempt: int, wait_s: float) -> None:
        problem = self._problem(outcome)[:200]
        log.info(
            "model asked again",
            url=self.url,
            attempt=attempt,
            wait_s=round(wait_s, 2),
            problem=problem,
        )

    def _problem(self, outcome: _Answer | Exception) -> str:
        if isinstance(outcome, _Answer):
            if outcome.status == _OK:
                sent = "" if outcome.value is None else f"; it sent {outcome.text[:_SHOWN]!r}"
                return f"status 200, but {outcome.judgement.why}{sent}"
            return f"status {outcome.status}: {outcome.text[:_SHOWN]}"
        return self._redactor.clean_text(f"{type(outcome).__name__}: {outcome}".rstrip(": "))

    async def close(self) -> None:
        """Close connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _once(self, url: str, path: str, data: bytes) -> _Answer:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=_CONNECT_S)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    "User-Agent": "hyperruntime",
                    "Content-Type": "application/json",
                    **self._headers,
                },
            )
        async with self._session.post(
            url, data=data, allow_redirects=False, proxy=self._proxy
        ) as response:
            text = (await response.read()).decode(errors="replace")
            asked_s = retry_after(response.headers.get("Retry-After", ""))
            is_final = response.headers.get(SHOULD_RETRY) == "false"
        text = self._redactor.clean_text(text)
        value = read_body(text.encode(errors="surrogatepass"))
        judgement = judge(path, response.status, value, text)
        wait_s = asked_s if judgement.retry and not is_final else None
        return _Answer(
            status=response.status, text=text, value=value, judgement=judgement, asked_s=wait_s
        )


def _value_of(url: str, answer: _Answer) -> dict[str, Any]:
    """Return the JSON object of a usable answer.

    Raises:
        ContextLengthError: the answer says that the conversation is too long for the model.
        ServerRefusedError: the answer refuses the request for another reason.
    """
    text = answer.text[:_SHOWN]
    judgement = answer.judgement
    if judgement.kind is Kind.USABLE:
        return dict(answer.value)
    if judgement.kind is Kind.TOO_LONG:
        raise ContextLengthError(f"the conversation is too long for the model: {text}")
    why = f"{url} answers with status {answer.status}: {text}"
    raise ServerRefusedError(why, judgement.status, answer.text)


async def check_server(options: ModelOptions) -> None:
    """Check that a model's server answers; see :meth:`Server.check`.

    Raises:
        ModelError: the variable of the key is not set, or nothing answers within a few seconds.
    """
    await Server(options).check()
