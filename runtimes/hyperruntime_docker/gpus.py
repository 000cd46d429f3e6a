"""What GPUs by CDI name mean for execs: their specs' environment, which Docker gives to the main process alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime_docker.args import Settings, cdi_names, gpu_names


def device_env(gpus: str | Sequence[str] | None, settings: Settings) -> Mapping[str, str]:
    """Return the environment that every exec needs so that the GPUs of a spec work in it.

    Raises:
        UnsupportedOptionError: the daemon takes no CDI names, and some were given.
    """
    return {} if gpus is None else cdi_env(cdi_names(gpu_names(gpus), settings), settings.cdi_dirs)


def cdi_env(names: Sequence[str], directories: Sequence[str]) -> dict[str, str]:
    """Return what the CDI specs in some directories add to the environment for some devices. Source: CDI spec 0.6."""
    env: dict[str, str] = {}
    for spec in _specs(directories) if names else ():
        kind = spec.get("kind", "")
        wanted = [d for d in spec.get("devices", ()) if f"{kind}={d.get('name')}" in names]
        for holder in [spec, *wanted] if wanted else []:
            lines = (holder.get("containerEdits") or {}).get("env") or ()
            env |= {name: value for name, _, value in (line.partition("=") for line in lines)}
    return env


def _specs(directories: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for path in (path for directory in directories for path in sorted(Path(directory).glob("*.json"))):
        try:
            found.append(dict(json.loads(path.read_text())))
        except (OSError, ValueError):
            continue
    return found
