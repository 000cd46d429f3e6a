"""Parse a CDI spec file into devices and their container edits.

The Container Device Interface (CDI) describes devices in JSON or YAML files. An engine with CDI
support applies them itself; for other engines, the driver applies the :class:`Edits`.
Source: SPEC.md of cncf-tags/container-device-interface, versions 0.3.0 to 1.0.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.json_values import parse_json, parse_yaml
from hyperruntime.spec import DEVICE_KIND, DEVICE_NAME, Mount
from hyperruntime.storage.run_files import open_regular, read_at_most
from hyperruntime.units import MIB

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOK_NAMES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


@attrs.frozen(kw_only=True)
class DeviceNode:
    """A device file in the container.

    Attributes:
        path: path in the container.
        host_path: path on the host.
        permissions: permissions of the device cgroup: some of ``r``, ``w`` and ``m``.
    """

    path: str
    host_path: str
    permissions: str = "rw"


@attrs.frozen(kw_only=True)
class Hook:
    """A program that an OCI runtime runs on the host; engines without one cannot run it.

    Attributes:
        path: path of the program.
        args: its argv, including ``argv[0]``.
    """

    path: str
    args: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Edits:
    """The changes that give devices to a container.

    Attributes:
        env: environment variables of every process in the container.
        device_nodes: device files.
        mounts: mounts of host files, such as the libraries of the device's driver.
        hooks: programs for an OCI runtime; a driver without one must report the hooks that it
            skips.
        groups: additional group ids of the container's processes.
    """

    env: Mapping[str, str] = attrs.field(factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    groups: tuple[int, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        """Return the merged edits without duplicates; ``other`` wins for a variable or a path in
        both.
        """
        return Edits(
            env={**self.env, **other.env},
            device_nodes=tuple(
                {node.path: node for node in (*self.device_nodes, *other.device_nodes)}.values()
            ),
            mounts=tuple({mount.target: mount for mount in (*self.mounts, *other.mounts)}.values()),
            hooks=tuple(dict.fromkeys((*self.hooks, *other.hooks))),
            groups=tuple(dict.fromkeys((*self.groups, *other.groups))),
        )


@attrs.frozen(kw_only=True)
class Device:
    """A device of a CDI spec.

    Attributes:
        name: ``vendor.com/class=name``.
        edits: edits of this device, and those of the spec for all of its devices.
        file: path of the spec.
    """

    name: str
    edits: Edits
    file: Path

    @property
    def kind(self) -> str:
        """The part before ``=``."""
        return self.name.partition("=")[0]


def read_spec(path: Path) -> tuple[Device, ...]:
    """Return the devices of a CDI spec file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a valid CDI spec; the message continues a sentence that starts with
            the file's name.
    """
    with os.fdopen(open_regular(path, follows=True), "rb") as file:
        data = read_at_most(file, 16 * MIB)
    kind, parse = ("JSON", parse_json) if path.suffix == ".json" else ("YAML", parse_yaml)
    try:
        value = parse(data)
    except ValueError as error:
        raise ValueError(f"is not {kind}: {error}") from None
    return tuple(_parse_spec(value, path))


def _parse_spec(value: object, path: Path) -> Iterator[Device]:
    spec = _mapping(value, "the file")
    version = spec.get("cdiVersion")
    kind = spec.get("kind")
    if version not in VERSIONS:
        raise ValueError(
            f"has cdiVersion {version!r}; supported versions are {VERSIONS[0]} to {VERSIONS[-1]}"
        )
    if not isinstance(kind, str) or not DEVICE_KIND.fullmatch(kind):
        raise ValueError(f"has kind {kind!r}, which is not vendor/class")
    common = _parse_edits(spec.get("containerEdits"))
    names: set[str] = set()
    items = _list(spec.get("devices"), "devices")
    if not items:
        raise ValueError("describes no device")
    for item in items:
        device = _mapping(item, "a device")
        short = device.get("name")
        name = f"{kind}={short}"
        if not isinstance(short, str) or not DEVICE_NAME.fullmatch(name):
            raise ValueError(
                f"has a device named {short!r}; a name may contain letters, digits and _-.:"
            )
        if name in names:
            raise ValueError(f"describes {name} twice")
        names.add(name)
        yield Device(
            name=name, edits=common + _parse_edits(device.get("containerEdits")), file=path
        )


def _parse_edits(value: object) -> Edits:
    if value is None:
        return Edits()
    edits = _mapping(value, "containerEdits")
    return Edits(
        env=dict(_parse_variable(item) for item in _list(edits.get("env"), "env")),
        device_nodes=tuple(
            _parse_node(item) for item in _list(edits.get("deviceNodes"), "deviceNodes")
        ),
        mounts=tuple(_parse_mount(item) for item in _list(edits.get("mounts"), "mounts")),
        hooks=tuple(_parse_hook(item) for item in _list(edits.get("hooks"), "hooks")),
        groups=tuple(
            _parse_group(item) for item in _list(edits.get("additionalGids"), "additionalGids")
        ),
    )


def _parse_variable(value: object) -> tuple[str, str]:
    name, equals, text = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not name or not equals or "\0" in text or "\0" in name:
        raise ValueError(f"has the variable {value!r}, which is not NAME=value")
    return name, text


def _parse_node(value: object) -> DeviceNode:
    node = _mapping(value, "a device node")
    path = _path(node.get("path"), "deviceNodes.path")
    permissions = node.get("permissions") or "rw"
    if not isinstance(permissions, str) or not set(permissions) <= set("rwm"):
        raise ValueError(f"has device permissions {permissions!r}; only r, w and m are allowed")
    if node.get("type", "") not in _NODE_TYPES:
        raise ValueError(
            f"has a device of type {node['type']!r}, which is not one of b, c, u and p"
        )
    host = node.get("hostPath")
    return DeviceNode(
        path=path, host_path=_path(host, "hostPath") if host else path, permissions=permissions
    )


def _parse_mount(value: object) -> Mount:
    mount = _mapping(value, "a mount")
    return Mount(
        source=_path(mount.get("hostPath"), "mounts.hostPath"),
        target=_path(mount.get("containerPath"), "mounts.containerPath"),
        read_only="ro" in _texts(mount.get("options"), "mounts.options"),
    )


def _parse_hook(value: object) -> Hook:
    hook = _mapping(value, "a hook")
    name = hook.get("hookName")
    if name not in _HOOK_NAMES:
        raise ValueError(f"has a hook named {name!r}, which is not one of {', '.join(_HOOK_NAMES)}")
    return Hook(
        path=_path(hook.get("path"), "hooks.path"), args=_texts(hook.get("args"), "hooks.args")
    )


def _parse_group(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise ValueError(f"has the group {value!r}, which is not a group id")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"has {type(value).__name__} instead of a mapping for {what}")  # noqa: TRY004
    return value


def _list(value: object, what: str) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"has {what} that is not a list")  # noqa: TRY004 - one error type for every fault of a file
    return value


def _texts(value: object, what: str) -> tuple[str, ...]:
    texts = _list(value, what)
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ValueError(f"has {what} that are not all strings")
    return tuple(str(text) for text in texts)


def _path(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"has {what} {value!r}, which is not an absolute path")
    return value
