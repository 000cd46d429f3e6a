"""Load a configuration from a source: a TOML file, ``replay:FILE``, ``record:FILE`` or variables.

``replay:FILE`` answers requests for any model, in all formats, from a file of recorded exchanges.
``record:FILE`` sends requests to the servers that the environment variables name, and appends each
exchange to the file.

The variables are those of model clients. For each wire format one source names the server and its
key: the host's environment, or a ``.env`` file, which stays on the host. Anybody may have written
the ``.env`` of a repository, so a key of one source never goes to an address of the other. Why:
docs/design/models.md#keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import GatewayConfigError, SpecError
from hyperruntime.gateway.config.values import REPLAY, GatewayConfig, ModelRule, Upstream
from hyperruntime.gateway.formats import WIRES
from hyperruntime.logs import get_logger
from hyperruntime.secrets.env_file import MODEL_CLIENTS, ModelClients, read_dotenv
from hyperruntime.settings.files import read_table
from hyperruntime.settings.reader import read

log = get_logger(__name__)

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


def only_in_file(env_file: Path) -> list[str]:
    """Return the variables of a ``.env`` file whose counterpart the host's environment does not
    have.

    Raises:
        GatewayConfigError: the file cannot be read.
    """
    filed = read_dotenv(env_file)
    only = []
    for clients in MODEL_CLIENTS:
        has_key, has_url = (
            any(os.environ.get(name) for name in names) for names in ((clients.key,), clients.urls)
        )
        only += [name for name in clients.urls if name in filed and not has_url]
        only += [clients.key] if clients.key in filed and not has_key else []
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
    upstreams = [_upstream(clients, known, filed, env_file) for clients in MODEL_CLIENTS]
    found = [upstream for upstream in upstreams if upstream is not None]
    if not found:
        return None
    rules = [ModelRule(name="*", upstream=upstream.name) for upstream in found]
    return GatewayConfig(upstreams=tuple(found), models=tuple(rules))


def _upstream(
    clients: ModelClients, known: Mapping[str, str], filed: Mapping[str, str], env_file: Path | None
) -> Upstream | None:
    """Return the server of a wire format, from one source; None if neither names one. A file's
    address is logged.

    Raises:
        GatewayConfigError: one source has the key and the other an address.
    """
    _check_sources(clients, known, filed, env_file)
    source = known if clients.key in known or clients.url_name(known) else filed
    name = clients.url_name(source)
    has_key = clients.key in source
    if not name and not has_key:
        return None
    key: dict[str, Any] = {}
    if has_key:
        key = (
            {"key_env": clients.key}
            if source is known
            else {"key_file": str(env_file), "key_name": clients.key}
        )
    upstream = Upstream(
        name=clients.wire, url=source[name] if name else clients.url, wire=clients.wire, **key
    )
    if name and source is filed:
        log.warning(
            "models are at the address of the agent's .env", name=name, address=upstream.url
        )
    return upstream


def _check_sources(
    clients: ModelClients, known: Mapping[str, str], filed: Mapping[str, str], env_file: Path | None
) -> None:
    """Raise if the environment has one half of a key and its address, and the file has the other
    half.
    """
    here = clients.url_name(known)
    there = clients.url_name(filed)
    if clients.key in known and not here and there:
        outside = clients.key
        inside = there
    elif here and clients.key not in known and clients.key in filed:
        outside = here
        inside = clients.key
    else:
        return
    raise GatewayConfigError(
        f"{outside} is set in the environment and {inside} in {str(env_file)!r}, and a key is "
        "sent only to an address of its own source; set both in the environment, or both only "
        "in that file, or name a file with a table [gateway] with --gateway"
    )
