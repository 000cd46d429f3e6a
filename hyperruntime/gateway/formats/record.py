"""What the gateway knows of a wire format: a record of it, and of each of its endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

_BEARER = "Authorization"


@attrs.frozen
class ErrorInside:
    """An error that a part of an answer holds, as the server wrote it."""

    error: object


Fault = str | ErrorInside  # a clause says what a broken server did


def _no_faults(body: Mapping[str, Any]) -> Iterator[Fault]:
    yield from ()


@attrs.frozen(kw_only=True)
class Endpoint:
    """An endpoint of a wire format.

    Attributes:
        path: its path, with ``/v1``.
        faults: yields what is wrong with a whole answer of status 200.
        reasons: yields the reasons for the end of a turn that an event of a stream names; None: its
            streams are not turns.
        events_hold: member of an event that may hold an error, or ""; an event itself may hold one
            too.
        is_free: whether a request costs no tokens.
        asks_usage: whether a stream reports its usage only if ``stream_options`` asks for it.
        asks_tokens: members of a request that ask for the generated tokens.
        refused: members that a request must not set, with the reason.
        error_is_named: whether the event of an error has the name ``error``.
        error_is_flat: whether the members of an error are beside the error, too.
    """

    path: str
    faults: Callable[[Mapping[str, Any]], Iterator[Fault]] = _no_faults
    reasons: Callable[[Mapping[str, Any]], Iterable[object]] | None = None
    events_hold: str = ""
    is_free: bool = False
    asks_usage: bool = False
    asks_tokens: Mapping[str, Any] = attrs.field(factory=dict)
    refused: Mapping[str, str] = attrs.field(factory=dict)
    error_is_named: bool = False
    error_is_flat: bool = False


@attrs.frozen(kw_only=True)
class WireFormat:
    """A wire format, in which requests pass the gateway without a translation.

    Attributes:
        name: its name in the configuration.
        endpoints: its endpoints.
        error: returns the body of an error, from a fixed word and a sentence.
        key_header: the header with the key; its value has the scheme ``Bearer`` if it is
            ``Authorization``.
        forwarded: headers of a client that are passed on, with the values of missing ones; "" adds
            none.
        url_has_version: whether the base URL of a server has the ``/v1`` of the paths.
        own_models: what the names of its vendor's models begin with.
        usage_at: where an answer or an event may hold its usage, as the names of members.
        input_counts: names of the counts of input tokens in a usage; those that are there are
            added.
        output_counts: names of the counts of output tokens.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    error: Callable[[str, str], dict[str, Any]]
    key_header: str = _BEARER
    forwarded: Mapping[str, str] = attrs.field(factory=dict)
    url_has_version: bool = True
    own_models: tuple[str, ...] = ()
    usage_at: tuple[tuple[str, ...], ...] = (("usage",),)
    input_counts: tuple[str, ...] = ("prompt_tokens", "input_tokens")
    output_counts: tuple[str, ...] = ("completion_tokens", "output_tokens")

    def url(self, base: str, path: str) -> str:
        """Return the URL of an endpoint below a server's base URL; one without a version may have
        it all the same.
        """
        base = base.rstrip("/")
        if self.url_has_version:
            return base + path.removeprefix("/v1")
        return base.removesuffix("/v1") + path

    def key_headers(self, key: str) -> dict[str, str]:
        """Return the headers that give a server its key."""
        return {self.key_header: f"Bearer {key}" if self.key_header == _BEARER else key}

    def headers_of(self, client: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a client to pass on."""
        found = {name: client.get(name, usual) for name, usual in self.forwarded.items()}
        return {name: value for name, value in found.items() if value}
