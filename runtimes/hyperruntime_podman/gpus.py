"""Give devices to Podman: by CDI name if possible, else by the spec's edits. Source: podman-run(1)
of 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.gpu.cdi import Device, Edits
from hyperruntime.gpu.devices import DEFAULT_DIRECTORIES, merge_edits
from hyperruntime.host.engine_program import mount_option
from hyperruntime_podman.args import NAME


def device_args(devices: Sequence[Device], *, rootless: bool) -> list[str]:
    """Return the options that give devices to a container; the caller adds their environment to
    every exec.

    Args:
        devices: the CDI devices.
        rootless: whether Podman runs as an ordinary user.

    Raises:
        UnsupportedOptionError: Podman cannot resolve the names, but the spec has hooks, which only
            Podman can run.
    """
    if not devices:
        return []
    edits = merge_edits(devices)
    reason = _why_not_by_name(devices, edits, rootless=rootless)
    if reason is None:
        return [word for device in devices for word in ("--device", device.name)]
    if edits.hooks:
        hooks = ", ".join(dict.fromkeys(" ".join(hook.args) or hook.path for hook in edits.hooks))
        raise UnsupportedOptionError(
            NAME,
            "gpus",
            f"{reason}, and only Podman itself can run the hooks of the devices: {hooks}",
        )
    return edit_args(edits)


def edit_args(edits: Edits) -> list[str]:
    """Return a CDI spec's edits as options of ``podman run``."""
    args: list[str] = []
    for node in edits.device_nodes:
        args += ["--device", f"{node.host_path}:{node.path}:{node.permissions}"]
    for mount in edits.mounts:
        args += ["--mount", mount_option(NAME, mount)]
    for group in edits.groups:
        args += ["--group-add", str(group)]
    return args


def _why_not_by_name(devices: Sequence[Device], edits: Edits, *, rootless: bool) -> str | None:
    """Return why Podman itself cannot resolve the names, or None if it can."""
    for device in devices:
        if device.file.parent not in map(Path, DEFAULT_DIRECTORIES):
            places = " and ".join(DEFAULT_DIRECTORIES)
            return (
                f"Podman resolves {device.name} only from a spec in {places}, not in "
                f"{str(device.file.parent)!r}"
            )
    for node in edits.device_nodes:
        if rootless and node.path != node.host_path:
            return (
                f"rootless Podman cannot resolve a device that is {node.host_path} outside and "
                f"{node.path} inside"
            )
    return None
