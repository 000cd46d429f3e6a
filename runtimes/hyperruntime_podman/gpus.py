"""How Podman is given devices: by CDI name where it can, else by what the spec says. Source: podman-run(1) of 4.3."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import Device, Edits
from hyperruntime.gpu.devices import DEFAULT_DIRECTORIES, merge_edits
from hyperruntime_podman.args import NAME, csv_line


def device_args(devices: Sequence[Device], *, rootless: bool) -> list[str]:
    """Return the arguments that give devices to a container; their environment goes with every exec.

    Raises:
        UnsupportedOptionError: Podman cannot take them by name, and their spec has hooks, which only it can run.
    """
    if not devices:
        return []
    edits = merge_edits(devices)
    reason = _why_not_by_name(devices, edits, rootless=rootless)
    if reason is None:
        return [word for device in devices for word in ("--device", device.name)]
    if edits.hooks:
        hooks = ", ".join(dict.fromkeys(" ".join(hook.args) or hook.path for hook in edits.hooks))
        raise UnsupportedOptionError(NAME, "gpus", f"{reason}, and only then are its spec's hooks run ({hooks})")
    return edit_args(edits)


def edit_args(edits: Edits) -> list[str]:
    """Return a CDI spec's edits as arguments of ``podman run``."""
    args: list[str] = []
    for node in edits.device_nodes:
        args += ["--device", f"{node.host_path}:{node.path}:{node.permissions}"]
    for mount in edits.mounts:
        fields = ["type=bind", f"src={mount.host_path}", f"dst={mount.container_path}"]
        args += ["--mount", csv_line([*fields, *(["ro=true"] if mount.read_only else [])])]
    for group in edits.groups:
        args += ["--group-add", str(group)]
    return args


def _why_not_by_name(devices: Sequence[Device], edits: Edits, *, rootless: bool) -> str | None:
    """Return why Podman itself cannot resolve the names, or None where it can."""
    for device in devices:
        if device.file.parent not in map(Path, DEFAULT_DIRECTORIES):
            places = " and ".join(DEFAULT_DIRECTORIES)
            return (
                f"Podman takes {device.name} by name only from a spec in {places}, not in {str(device.file.parent)!r}"
            )
    for node in edits.device_nodes:
        if rootless and node.path != node.host_path:
            return f"rootless Podman takes no device by name that is {node.host_path} outside and {node.path} inside"
    return None
