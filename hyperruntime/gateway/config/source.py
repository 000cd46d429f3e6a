"""Where a configuration comes from, in one text: a TOML file, ``replay:FILE``, or ``record:FILE``.

``replay:FILE`` answers any model of both formats from a file of recorded exchanges; ``record:FILE`` goes to the servers
that the usual variables name and adds each exchange to the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway.config.environment import derive_config
from hyperruntime.gateway.config.toml_file import load_config
from hyperruntime.gateway.config.values import REPLAY, WIRES, GatewayConfig, ModelRule, Upstream

RECORD = "record:"
_SERVERS = (
    "set OPENAI_API_KEY or OPENAI_BASE_URL, or those of ANTHROPIC, in the environment or in the agent's .env, or give "
    "a file with a table [gateway]"
)


def absolute_source(source: str) -> str:
    """Return a source that means the same from any directory."""
    prefix, path = _split(source)
    return prefix + os.path.abspath(os.path.expanduser(path))


def load_source(source: str, env_file: Path | None = None) -> GatewayConfig:
    """Return the configuration.

    Args:
        source: as said above. env_file: a ``.env`` file that may name servers to record.

    Raises:
        GatewayConfigError: the file cannot be read or is wrong, or there is no server to record.
    """
    prefix, path = _split(source)
    if prefix == REPLAY:
        upstreams = tuple(Upstream(name=wire, url=source, wire=wire) for wire in WIRES)
        return GatewayConfig(upstreams=upstreams, models=tuple(ModelRule(name="*", upstream=wire) for wire in WIRES))
    if prefix == RECORD:
        return attrs.evolve(require_servers(env_file, f"{source} is asked for"), record=path)
    return load_config(Path(path))


def require_servers(env_file: Path | None, why: str) -> GatewayConfig:
    """Return a gateway to the servers that the variables name.

    Raises:
        GatewayConfigError: they name none; ``why`` says who wants one.
    """
    config = derive_config(env_file)
    if config is None:
        raise GatewayConfigError(f"{why}, and no server that has models: {_SERVERS}")
    return config


def _split(source: str) -> tuple[str, str]:
    prefix = next((prefix for prefix in (REPLAY, RECORD) if source.startswith(prefix)), "")
    return prefix, source.removeprefix(prefix)
