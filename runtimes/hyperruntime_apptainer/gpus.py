"""Give GPUs to Apptainer: by its own ``--device``, or by applying the CDI spec here, or by ``--nv``
or ``--rocm`` if there is no spec.

Apptainer before 1.5 does not know CDI, and SingularityCE 4 only with ``--oci``. Apptainer 1.5
applies variables, mounts and device files of a spec, but no hooks; source: its release notes. So
a spec with hooks, as NVIDIA's, is always applied here.

The hooks of NVIDIA's specs refresh the dynamic linker's cache and make links. Instead, this module
mounts a directory of links to the driver's libraries, which the linker searches, and mounts each
link's target at the link's path. Source: the hook commands of nvidia-ctk(1) and nvidia-cdi-hook(1),
NVIDIA Container Toolkit 1.13 to 1.18.
"""

from __future__ import annotations

import mmap
import os
import posixpath
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import DeviceError, DeviceNotFoundError, UnsupportedOptionError
from hyperruntime.gpu.cdi import Edits, Hook
from hyperruntime.gpu.devices import load_devices, merge_edits
from hyperruntime.gpu.grant import AMD_DEVICE, NVIDIA_KIND, gpu_devices
from hyperruntime.gpu.nvidia import PROGRAM, list_gpus
from hyperruntime.host.process import find_program
from hyperruntime.spec import Mount
from hyperruntime_apptainer.args import FLAG_LIBRARIES, NAME, NO_GPUS, NV, ROCM, Gpus

_LIBRARY = re.compile(r"\.so(\.[0-9A-Za-z.]+)?$")
_PATH_VARIABLE = "LD_LIBRARY_PATH"
# What ROCm reads to choose GPUs; Slurm sets them for a job.
AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_STALE = "is the CDI spec out of date?"
# chmod: the directories are ours already. The other hook stops the driver's library from making
# device files, and a container of ours cannot make any.
NEEDLESS = ("chmod", "disable-device-node-modification")
_LINKS = "create-symlinks"
_CACHE = "update-ldcache"
_COMPAT = "enable-cuda-compat"
_KNOWN = (_LINKS, _CACHE, _COMPAT, *NEEDLESS)
# The parts of a library's file that lead to its soname. Sources: elf(5); System V ABI, dynamic
# section.
_LOAD = 1
_DYNAMIC = 2
_STRTAB = 5
_SONAME = 14
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


@attrs.frozen(kw_only=True)
class Wishes:
    """The effects that hooks ask for.

    Attributes:
        links: pairs of a link's path in the container and its target.
        folders: directories that the dynamic linker searches for libraries.
        driver_major: the host driver's major version. CUDA compatibility libraries of the image for
            a newer driver are preferred; "" means never.
    """

    links: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    driver_major: str = ""


def find_gpus(gpus: str | Sequence[str] | None, *, cdi: bool = False) -> Gpus:
    """Return what a container needs for the GPUs of its spec; ``auto`` must be resolved before.

    Args:
        gpus: the GPUs of the spec.
        cdi: whether Apptainer applies CDI specs itself.

    Raises:
        DeviceNotFoundError: no CDI spec describes one of the GPUs.
        DeviceError: the CDI spec names a file that does not exist, or that this user may not use.
        UnsupportedOptionError: the CDI spec needs something that this driver cannot do.
    """
    if gpus is None:
        return NO_GPUS
    registry = load_devices()
    try:
        devices = gpu_devices(gpus, registry)
    except DeviceNotFoundError:
        names = (gpus,) if isinstance(gpus, str) else tuple(gpus)
        if registry.names(NVIDIA_KIND) or any("=" in name for name in names):
            raise
        if find_program(PROGRAM) is not None:
            return _by_nv(names)
        if os.path.exists(AMD_DEVICE):
            return _by_rocm(names)
        raise
    edits = merge_edits(devices)
    found = apply_edits(edits)
    directories = tuple(str(path) for path in registry.directories)
    if not cdi or not _is_simple(edits, directories):
        return found
    return attrs.evolve(
        found, names=tuple(device.name for device in devices), directories=directories
    )


def _is_simple(edits: Edits, directories: Sequence[str]) -> bool:
    """Return whether Apptainer's own ``--device`` does all that the edits ask for."""
    renamed = any(node.path != node.host_path for node in edits.device_nodes)
    quoted = any("," in path for path in directories)
    return not (edits.hooks or renamed or quoted or _PATH_VARIABLE in edits.env)


def apply_edits(edits: Edits) -> Gpus:
    """Return what a container needs for the edits of a CDI spec.

    Raises:
        DeviceError: the edits name a file that does not exist, or that this user may not use.
        UnsupportedOptionError: the edits need something that this driver cannot do.
    """
    _check(edits)
    wishes = parse_hooks(edits.hooks)
    brought = _Brought(edits, wishes.folders)
    for link, target in _in_order(wishes):
        brought.add_link(link, target)
    env = {name: value for name, value in edits.env.items() if name != _PATH_VARIABLE}
    return Gpus(
        nodes=tuple(brought.nodes.values()),
        mounts=tuple(brought.mounts.values()),
        libraries=brought.libraries,
        library_path=edits.env.get(_PATH_VARIABLE, ""),
        driver_major=wishes.driver_major,
        env=env,
    )


def _by_nv(names: Sequence[str]) -> Gpus:
    """Return the use of ``--nv``, which gives all GPUs or none.

    Raises:
        DeviceError: ``nvidia-smi`` fails.
        UnsupportedOptionError: the names are not all GPUs of this machine.
    """
    there = list_gpus()
    unasked = [gpu.index for gpu in there if gpu.index not in names and gpu.uuid not in names]
    if "all" not in names and (unasked or len(names) > len(there)):
        why = (
            f"without a CDI spec `--nv` gives all {len(there)} GPUs of this machine or none; "
            "ask for 'all', or make a"
        )
        step = (
            "`nvidia-ctk cdi generate --output=DIRECTORY/nvidia.yaml` and set "
            "HYPERRUNTIME_CDI_DIRS=DIRECTORY"
        )
        raise UnsupportedOptionError(NAME, "gpus", f"{why} CDI spec with {step}")
    return Gpus(flag=NV, library_path=FLAG_LIBRARIES)


def _by_rocm(names: Sequence[str]) -> Gpus:
    """Return the use of ``--rocm``, which gives all GPUs; the variables of a batch system say which
    of them are this job's.

    Raises:
        UnsupportedOptionError: the names are not all GPUs.
    """
    if tuple(names) != ("all",):
        why = (
            "without a CDI spec `--rocm` gives all AMD GPUs of this machine or none; ask for 'all', "
            "or make a CDI spec with `amd-ctk cdi generate` and set HYPERRUNTIME_CDI_DIRS to its "
            "directory"
        )
        raise UnsupportedOptionError(NAME, "gpus", why)
    env = {name: os.environ[name] for name in AMD_VARIABLES if name in os.environ}
    return Gpus(flag=ROCM, library_path=FLAG_LIBRARIES, env=env)


def _check(edits: Edits) -> None:
    """Raise if something is missing or an ordinary user cannot have it."""
    for node in edits.device_nodes:
        if not os.path.exists(node.host_path):
            raise DeviceError(
                f"the device {node.host_path} for {node.path} does not exist; {_STALE}"
            )
        if not os.access(node.host_path, os.R_OK | os.W_OK):
            raise DeviceError(
                f"the device {node.host_path} may not be used by this user; join the group of "
                "this file"
            )
        if "w" not in node.permissions:
            why = (
                f"{node.path} must be read-only, which needs a device cgroup; use Podman or Docker"
            )
            raise UnsupportedOptionError(NAME, "gpus", why)
    for mount in edits.mounts:
        if not os.path.exists(mount.source):
            raise DeviceError(f"{mount.source}, which the devices need, does not exist; {_STALE}")
    for group in edits.groups:
        if group not in os.getgroups():
            why = (
                f"the devices need the group {group}, but this user is not in it; ask the "
                "administrator"
            )
            raise UnsupportedOptionError(NAME, "gpus", why)


class _Brought:
    """Device files, mounts and libraries, by their paths in the container."""

    def __init__(self, edits: Edits, folders: Iterable[str]) -> None:
        self.nodes = {node.path: node for node in edits.device_nodes}
        self.mounts = {mount.target: mount for mount in edits.mounts}
        self.libraries: dict[str, str] = {}
        self._folders = frozenset(folders)
        # maps a link's path in the container to its library's path
        self._known: dict[str, str] = {}
        for folder in self._folders:
            for path, host in sorted(self._libraries_in(folder)):
                self._add_library(folder, path, host)

    def add_link(self, link: str, target: str) -> None:
        """Put the target of a link at the path of the link.

        Args:
            link: the path of the link in the container.
            target: the path in the container that it points to.

        Raises:
            UnsupportedOptionError: the CDI spec puts nothing at the target.
        """
        if link in self.mounts or link in self.nodes or link in self._known:
            return
        path = self._known.get(target, target)
        if path in self.nodes:
            self.nodes[link] = attrs.evolve(self.nodes[path], path=link)
            return
        host = self._host_path(path)
        if host is None:
            why = (
                f"the CDI spec links {link} to {target}, which it does not mount; generate the "
                "spec again"
            )
            raise UnsupportedOptionError(NAME, "gpus", why)
        self.mounts[link] = Mount(source=host, target=link)
        self._known[link] = path
        if posixpath.dirname(link) in self._folders and _LIBRARY.search(link):
            self.libraries.setdefault(posixpath.basename(link), path)

    def _add_library(self, folder: str, path: str, host: str) -> None:
        for name in dict.fromkeys((posixpath.basename(path), read_soname(host))):
            if name is not None:
                self.libraries.setdefault(name, path)
                self._known.setdefault(posixpath.join(folder, name), path)

    def _libraries_in(self, folder: str) -> Iterable[tuple[str, str]]:
        """Yield the libraries of a directory: each one's path in the container and on the host."""
        for mount in self.mounts.values():
            if posixpath.dirname(mount.target) == folder and _LIBRARY.search(mount.target):
                yield mount.target, mount.source
        host = self._host_path(folder)
        if host is not None and os.path.isdir(host):
            for path in Path(host).iterdir():
                if path.is_file() and _LIBRARY.search(path.name):
                    yield posixpath.join(folder, path.name), str(path)

    def _host_path(self, path: str) -> str | None:
        """Return the host path of a file that is mounted or lies in a mounted directory; None for
        any other.
        """
        for target, mount in self.mounts.items():
            if path == target:
                return mount.source
            if path.startswith(f"{target.rstrip('/')}/"):
                host = posixpath.join(mount.source, posixpath.relpath(path, target))
                return host if os.path.exists(host) else None
        return None


def _in_order(wishes: Wishes) -> list[tuple[str, str]]:
    """Return the links in an order in which a link to another link comes after that one."""
    left = dict(wishes.links)
    ordered = []
    while left:
        ready = [link for link, target in left.items() if target not in left] or list(left)
        ordered += [(link, left.pop(link)) for link in ready]
    return ordered


def parse_hooks(hooks: Sequence[Hook]) -> Wishes:
    """Return the effects that hooks ask for.

    Raises:
        UnsupportedOptionError: a hook is an unknown program, or a link is not ``TARGET::PATH``.
    """
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    major = ""
    for hook in hooks:
        command = next((word for word in hook.args if word in _KNOWN), None)
        if command is None:
            raise _refusal(hook, "only an OCI runtime can run it")
        options = _options(hook.args)
        if command == _LINKS:
            links += [_parse_link(hook, text) for name, text in options if name == "--link"]
        elif command == _CACHE:
            folders += [posixpath.normpath(text) for name, text in options if name == "--folder"]
        elif command == _COMPAT:
            version = next((text for name, text in options if name == "--host-driver-version"), "")
            major = major or (re.match(r"[0-9]*", version) or [""])[0]
    return Wishes(
        links=tuple(dict.fromkeys(links)), folders=tuple(dict.fromkeys(folders)), driver_major=major
    )


def _options(args: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options of an argv, from ``--name=value`` and ``--name value``."""
    found = []
    for number, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found.append((name, value if equals else "".join(args[number + 1 : number + 2])))
    return found


def _parse_link(hook: Hook, text: str) -> tuple[str, str]:
    target, _, link = text.partition("::")
    if not target or not link.startswith("/"):
        raise _refusal(hook, f"its link {text!r} is not TARGET::PATH")
    link = posixpath.normpath(link)
    return link, posixpath.normpath(posixpath.join(posixpath.dirname(link), target))


def _refusal(hook: Hook, why: str) -> UnsupportedOptionError:
    words = " ".join(hook.args) or hook.path
    step = "use a CDI spec without this hook, or use Podman or Docker"
    return UnsupportedOptionError(
        NAME, "gpus", f"the CDI spec has a hook ({words}), and {why}; {step}"
    )


def read_soname(path: str | os.PathLike[str]) -> str | None:
    """Return the DT_SONAME of a 64-bit little-endian library; None without one, or if the file
    cannot be parsed.

    ``ldconfig`` makes a link of this name beside each library; without ``ldconfig`` the driver
    makes these links.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _soname(data)
    except (OSError, ValueError, OverflowError, struct.error):  # the file is not a library
        return None


def _soname(data: mmap.mmap) -> str | None:
    if data[:6] != _ELF64_LITTLE_ENDIAN:
        return None
    *_, table, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
    segments = [_SEGMENT.unpack_from(data, table + number * size) for number in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
    if dynamic is None:
        return None
    entries = dict(
        _ENTRY.iter_unpack(data[dynamic[2] : dynamic[2] + dynamic[5] // _ENTRY.size * _ENTRY.size])
    )
    if _SONAME not in entries or _STRTAB not in entries:
        return None
    for kind, _, offset, address, _, length, *_ in segments:
        if kind == _LOAD and address <= entries[_STRTAB] < address + length:
            start = offset + entries[_STRTAB] - address + entries[_SONAME]
            name = data[start : data.find(b"\0", start)].decode()
            return name if name and "/" not in name else None
    return None
