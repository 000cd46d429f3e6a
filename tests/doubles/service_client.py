"""A client of the HTTP service that checks each answer against the service's own OpenAPI
document.
"""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
import attrs
from jsonschema import Draft202012Validator

TOKEN = "0123456789abcdef" * 3


@attrs.frozen
class Answered:
    """An answer; ``value`` is its JSON, or the list of its lines."""

    status: int
    body: bytes
    value: Any
    headers: Any

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.value["error"]["type"]


class ServiceClient:
    """Asks one service, and remembers which operations of the document were answered without an
    error.
    """

    def __init__(
        self, session: aiohttp.ClientSession, base: str, token: str | None = TOKEN
    ) -> None:
        self.session, self.base = session, base
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.document: dict[str, Any] = {}
        self.seen: set[tuple[str, str]] = set()

    async def ask(self, method: str, path: str, *, headers: Any = None, **how: Any) -> Answered:
        """Send a request; ``how`` is for aiohttp."""
        if not self.document:
            async with self.session.get(
                f"{self.base}/v1/openapi.json", headers=self.headers
            ) as answer:
                assert answer.status == 200, await answer.text()
                self.document = await answer.json()
        given = {**self.headers, **(headers or {})}
        async with self.session.request(
            method, f"{self.base}{path}", headers=given, **how
        ) as answer:
            return self.checked(method, path, answer, await answer.read())

    def checked(
        self, method: str, path: str, answer: aiohttp.ClientResponse, body: bytes
    ) -> Answered:
        """Return an answer that fits the document."""
        template = self.template(path)
        known = (
            self.document["paths"]
            .get(template, {})
            .get(method.lower(), {"responses": {}})["responses"]
        )
        said = known.get(str(answer.status), self.document["components"]["responses"]["Error"])
        value = None
        if "content" in said:
            schema = said["content"][answer.content_type].get("schema", {})
            lines = body.splitlines() if answer.content_type == "application/x-ndjson" else [body]
            if schema:
                value = [json.loads(line) for line in lines]
                for one in value:
                    Draft202012Validator(
                        {**schema, "components": self.document["components"]}
                    ).validate(one)
                value = value if len(lines) != 1 or "ndjson" in answer.content_type else value[0]
        else:
            assert body == b"", body
        if answer.status < 400:
            self.seen.add((method, template))
        return Answered(answer.status, body, value, answer.headers)

    def template(self, path: str) -> str:
        path = path.partition("?")[0]
        for known in self.document["paths"]:
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", known), path):
                return str(known)
        return path

    async def container(self, **fields: Any) -> str:
        """Start a container; return the path of its routes."""
        made = await self.ask("POST", "/v1/containers", json=fields)
        assert made.status == 201, made
        return f"/v1/containers/{made.value['name']}"
