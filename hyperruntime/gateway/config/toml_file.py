"""Load a gateway's configuration from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.errors import GatewayConfigError, SpecError
from hyperruntime.gateway.config.values import REPLAY, GatewayConfig
from hyperruntime.option_fields import why_invalid

_TABLE = "gateway"


def load_config(path: Path) -> GatewayConfig:
    """Return the configuration in the table ``[gateway]`` of a file; its paths are relative to the file's directory.

    Raises:
        GatewayConfigError: the file cannot be read, has no such table, or the table is invalid.
    """
    try:
        table = tomllib.loads(path.read_text())[_TABLE]
    except (OSError, ValueError) as error:
        raise GatewayConfigError(f"{path} cannot be read as TOML: {error}; correct it") from error
    except KeyError:
        raise GatewayConfigError(f"{path} has no table [{_TABLE}]; add one with upstreams and models") from None
    if not isinstance(table, dict):
        raise GatewayConfigError(f"{path}: {_TABLE} = {table!r} is not a table; write [{_TABLE}] and its keys")
    return config_from(table, path.parent)


def config_from(table: Mapping[str, Any], base: Path) -> GatewayConfig:
    """Return the configuration in a table.

    Args:
        table: keys as in :class:`~hyperruntime.gateway.GatewayConfig`.
        base: directory that relative paths in the table are relative to.

    Raises:
        GatewayConfigError: a key is unknown or missing, or a value is invalid.
    """
    from cattrs import BaseValidationError, Converter

    converter = Converter(forbid_extra_keys=True)
    try:
        return converter.structure(_based(table, base), GatewayConfig)
    except BaseValidationError as error:
        why = why_invalid(error, _TABLE)
        raise GatewayConfigError(f"the gateway's configuration is invalid: {why}") from error
    except (SpecError, TypeError, AttributeError) as error:
        raise GatewayConfigError(f"the gateway's configuration is invalid: {error}") from error


def _based(table: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a copy of the table whose paths are joined to the base directory."""
    found = dict(table)
    for name in ("log", "record"):
        if isinstance(found.get(name), str):
            found[name] = str(base / found[name])
    found["upstreams"] = [_based_upstream(upstream, base) for upstream in found.get("upstreams", ())]
    return found


def _based_upstream(upstream: Any, base: Path) -> Any:  # noqa: ANN401 - checked by the caller's converter
    if not isinstance(upstream, dict):
        return upstream
    found = dict(upstream)
    url = found.get("url")
    if isinstance(url, str) and url.startswith(REPLAY):
        found["url"] = f"{REPLAY}{base / url.removeprefix(REPLAY)}"
    if isinstance(found.get("key_file"), str):
        found["key_file"] = str(base / Path(found["key_file"]).expanduser())
    return found
