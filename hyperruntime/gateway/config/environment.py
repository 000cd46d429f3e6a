"""Derive a gateway's configuration from the environment variables of model clients.

The host's environment comes first, then a ``.env`` file, which stays on the host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway.config.values import GatewayConfig, ModelRule, Upstream, Wire, parse_dotenv
from hyperruntime.logs import get_logger

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


_FAMILIES = (
    _Family("openai", "OPENAI_API_KEY", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "https://api.openai.com/v1"),
    _Family(
        "anthropic", "ANTHROPIC_API_KEY", ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), "https://api.anthropic.com"
    ),
)


KEY_VARIABLES = tuple(family.key for family in _FAMILIES)


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the variables of a ``.env`` file that the gateway uses; empty if the file does not exist.

    Raises:
        GatewayConfigError: the file cannot be read.
    """
    try:
        found = parse_dotenv(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise GatewayConfigError(f"{path} cannot be read: {error}; correct or remove it") from error
    for name in _UNKNOWN:
        if name in found:
            log.warning("variable of .env ignored: the gateway speaks the formats of OpenAI and Anthropic", name=name)
    names = [name for family in _FAMILIES for name in (family.key, *family.urls)]
    return {name: found[name] for name in names if found.get(name)}


def derive_config(env_file: Path | None, environment: Mapping[str, str] | None = None) -> GatewayConfig | None:
    """Return a configuration for the servers that the variables name, with all their models; None if they name none.

    Args:
        env_file: a ``.env`` file, which may not exist; None for no file. The environment takes precedence.
        environment: the variables to use; None or empty for the host's environment.

    Raises:
        GatewayConfigError: the file cannot be read.
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


def borrowed_url(env_file: Path) -> str:
    """Return the name of a URL variable in a ``.env`` file that would redirect a key of the host's environment, or "".

    This is the case if the host's environment has the key of a wire format and none of its URL variables.

    Raises:
        GatewayConfigError: the file cannot be read.
    """
    filed = read_dotenv(env_file)
    for family in _FAMILIES:
        named = [name for name in family.urls if name in filed]
        if named and os.environ.get(family.key) and not any(os.environ.get(name) for name in family.urls):
            return named[0]
    return ""


def _upstream(
    family: _Family, known: Mapping[str, str], filed: Mapping[str, str], env_file: Path | None
) -> Upstream | None:
    both = {**filed, **known}
    url = next((both[name] for name in family.urls if name in both), None)
    if url is None and family.key not in both:
        return None
    key: dict[str, Any] = {}
    if family.key in known:
        key = {"key_env": family.key}
    elif family.key in filed:
        key = {"key_file": str(env_file), "key_name": family.key}
    return Upstream(name=family.wire, url=url or family.url, wire=family.wire, **key)
