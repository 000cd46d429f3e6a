"""Load a configuration from a source: a TOML file, ``replay:FILE`` or ``record:FILE``.

``replay:FILE`` answers requests for any model, in both formats, from a file of recorded exchanges.
``record:FILE`` sends requests to the servers that the environment variables name, and appends each
exchange to the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from hyperruntime.errors import GatewayConfigError, SpecError
from hyperruntime.gateway.config.environment import derive_config
from hyperruntime.gateway.config.values import REPLAY, WIRES, GatewayConfig, ModelRule, Upstream
from hyperruntime.settings.files import read_table
from hyperruntime.settings.reader import read

RECORD = "record:"
_TABLE = "gateway"
_SERVERS = (
    "set OPENAI_API_KEY, OPENAI_BASE_URL or the same of ANTHROPIC in the environment or in the "
    "agent's .env, or give a file with a table [gateway]"
)


def absolute_source(source: str) -> str:
    """Return the source with its path made absolute."""
    prefix, path = _split(source)
    return prefix + os.path.abspath(os.path.expanduser(path))


def load_source(source: str, env_file: Path | None = None) -> GatewayConfig:
    """Return the configuration of a source.

    Args:
        source: path of a TOML file, ``replay:FILE`` or ``record:FILE``.
        env_file: a ``.env`` file that may name the servers for ``record:FILE``; None for no file.

    Raises:
        GatewayConfigError: the file cannot be read or is invalid, or the variables name no server
            to record.
        SpecError: a URL in the variables is malformed.
    """
    prefix, path = _split(source)
    if prefix == REPLAY:
        upstreams = tuple(Upstream(name=wire, url=source, wire=wire) for wire in WIRES)
        return GatewayConfig(
            upstreams=upstreams, models=tuple(ModelRule(name="*", upstream=wire) for wire in WIRES)
        )
    if prefix == RECORD:
        return attrs.evolve(require_servers(env_file, f"{source} is given"), record=path)
    return load_config(Path(path))


def load_config(path: Path) -> GatewayConfig:
    """Return the configuration in the table ``[gateway]`` of a file; its paths are relative to the
    file's directory.

    Raises:
        GatewayConfigError: the file cannot be read, has no such table, or a key or value of the
            table is invalid.
    """
    table = read_table(path, _TABLE, GatewayConfigError, "add one with upstreams and models")
    try:
        return _based(read(GatewayConfig, table, path=_TABLE), path.parent)
    except SpecError as error:
        raise GatewayConfigError(f"the gateway's configuration is invalid: {error}") from error


def _based(config: GatewayConfig, base: Path) -> GatewayConfig:
    """Return a configuration whose paths are joined to the base directory."""
    log, record = (path and str(base / path) for path in (config.log, config.record))
    upstreams = tuple(_based_upstream(upstream, base) for upstream in config.upstreams)
    return attrs.evolve(config, upstreams=upstreams, log=log, record=record)


def _based_upstream(upstream: Upstream, base: Path) -> Upstream:
    url = f"{REPLAY}{base / upstream.replay}" if upstream.replay else upstream.url
    key_file = upstream.key_file and str(base / Path(upstream.key_file).expanduser())
    return attrs.evolve(upstream, url=url, key_file=key_file)


def require_servers(env_file: Path | None, why: str) -> GatewayConfig:
    """Return a configuration for the servers that the variables name.

    Args:
        env_file: a ``.env`` file that may name servers; None for no file.
        why: why a server is needed, as a clause; begins the error's message.

    Raises:
        GatewayConfigError: the variables name no server, or the file cannot be read.
        SpecError: a URL is malformed.
    """
    config = derive_config(env_file)
    if config is None:
        raise GatewayConfigError(f"{why}, but no model server is configured; {_SERVERS}")
    return config


def _split(source: str) -> tuple[str, str]:
    prefix = next((prefix for prefix in (REPLAY, RECORD) if source.startswith(prefix)), "")
    return prefix, source.removeprefix(prefix)
