"""Derive a gateway's configuration from the environment variables of model clients.

For each wire format one source names the server and its key: the host's environment, or a ``.env``
file, which stays on the host. Anybody may have written the ``.env`` of a repository, so a key of
one source never goes to an address of the other. Why: docs/design/models.md#keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway.config.values import (
    GatewayConfig,
    ModelRule,
    Upstream,
    Wire,
    parse_dotenv,
)
from hyperruntime.logs import get_logger
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import MIB

log = get_logger(__name__)

_UNKNOWN = ("GEMINI_API_KEY", "GEMINI_API_BASE")


@attrs.frozen
class _Family:
    """The environment variables of one wire format.

    Attributes:
        wire: the format.
        key: name of the variable with the API key.
        urls: names of the variables with the base URL; the first that is set wins.
        url: the base URL if none of them is set.
    """

    wire: Wire
    key: str
    urls: tuple[str, ...]
    url: str

    def url_name(self, variables: Mapping[str, str]) -> str:
        """Return the name of the variable with the base URL; "" if none is set."""
        return next((name for name in self.urls if name in variables), "")


_FAMILIES = (
    _Family(
        "openai",
        "OPENAI_API_KEY",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        "https://api.openai.com/v1",
    ),
    _Family(
        "anthropic",
        "ANTHROPIC_API_KEY",
        ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"),
        "https://api.anthropic.com",
    ),
)


KEY_VARIABLES = tuple(family.key for family in _FAMILIES)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a ``.env`` file that the gateway uses; empty if the file does not
    exist.

    Raises:
        GatewayConfigError: it is not a regular file, is too large, or cannot be read.
    """
    try:
        found = parse_dotenv(read_run_file(path, below=path.parent, most_bytes=MIB).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise GatewayConfigError(f"{path} cannot be read: {why}; correct or remove it") from error
    for name in _UNKNOWN:
        if name in found:
            log.warning(
                "variable of .env ignored: the gateway speaks the formats of OpenAI and Anthropic",
                name=name,
            )
    names = [name for family in _FAMILIES for name in (family.key, *family.urls)]
    return {name: found[name] for name in names if found.get(name)}


def only_in_file(env_file: Path) -> list[str]:
    """Return the variables of a ``.env`` file whose counterpart the host's environment does not
    have.

    Raises:
        GatewayConfigError: the file cannot be read.
    """
    filed = read_dotenv(env_file)
    only = []
    for family in _FAMILIES:
        has_key, has_url = (
            any(os.environ.get(name) for name in names) for names in ((family.key,), family.urls)
        )
        only += [name for name in family.urls if name in filed and not has_url]
        only += [family.key] if family.key in filed and not has_key else []
    return only


def derive_config(
    env_file: Path | None, environment: Mapping[str, str] | None = None
) -> GatewayConfig | None:
    """Return a configuration for the servers that the variables name, with all their models; None
    if they name none.

    Args:
        env_file: a ``.env`` file, which may not exist; None for no file. The environment takes
            precedence.
        environment: the variables to use; None or empty for the host's environment.

    Raises:
        GatewayConfigError: the file cannot be read, or one source has the key of a server and the
            other its address.
        SpecError: a URL is malformed.
    """
    known = {name: value for name, value in (environment or os.environ).items() if value}
    filed = {} if env_file is None else read_dotenv(env_file)
    upstreams = [_upstream(family, known, filed, env_file) for family in _FAMILIES]
    found = [upstream for upstream in upstreams if upstream is not None]
    if not found:
        return None
    rules = [ModelRule(name="*", upstream=upstream.name) for upstream in found]
    return GatewayConfig(upstreams=tuple(found), models=tuple(rules))


def _upstream(
    family: _Family, known: Mapping[str, str], filed: Mapping[str, str], env_file: Path | None
) -> Upstream | None:
    """Return the server of a wire format, from one source; None if neither names one. A file's
    address is logged.

    Raises:
        GatewayConfigError: one source has the key and the other an address.
    """
    _check_sources(family, known, filed, env_file)
    source = known if family.key in known or family.url_name(known) else filed
    name = family.url_name(source)
    has_key = family.key in source
    if not name and not has_key:
        return None
    key: dict[str, Any] = {}
    if has_key:
        key = (
            {"key_env": family.key}
            if source is known
            else {"key_file": str(env_file), "key_name": family.key}
        )
    upstream = Upstream(
        name=family.wire, url=source[name] if name else family.url, wire=family.wire, **key
    )
    if name and source is filed:
        log.warning(
            "models are at the address of the agent's .env", name=name, address=upstream.url
        )
    return upstream


def _check_sources(
    family: _Family, known: Mapping[str, str], filed: Mapping[str, str], env_file: Path | None
) -> None:
    """Raise if the environment has one half of a key and its address, and the file has the other
    half.
    """
    here = family.url_name(known)
    there = family.url_name(filed)
    if family.key in known and not here and there:
        outside = family.key
        inside = there
    elif here and family.key not in known and family.key in filed:
        outside = here
        inside = family.key
    else:
        return
    raise GatewayConfigError(
        f"{outside} is set in the environment and {inside} in {str(env_file)!r}, and a key is "
        "sent only to an address of its own source; set both in the environment, or both only "
        "in that file, or name a file with a table [gateway] with --gateway"
    )
