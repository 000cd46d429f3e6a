"""Load the devices of this machine's CDI specs.

An invalid file is a finding, never an error. As in the engines, ``/etc/cdi`` is for specs of an
administrator and ``/var/run/cdi`` for generated specs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from hyperruntime.driver import Finding
from hyperruntime.errors import DeviceError, DeviceNotFoundError, name_hint
from hyperruntime.gpu.cdi import Device, Edits, read_spec

DEFAULT_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")  # a later directory has precedence
ENVIRONMENT_VARIABLE = "HYPERRUNTIME_CDI_DIRS"
GENERATE = "generate one with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` as root"
_SUFFIXES = (".json", ".yaml", ".yml")


@attrs.frozen(kw_only=True)
class DeviceRegistry:
    """The devices of all CDI specs.

    Attributes:
        devices: devices by name, without those that two specs of one directory describe.
        findings: faults of the spec files.
        directories: the searched directories.
    """

    devices: Mapping[str, Device] = attrs.field(factory=dict)
    findings: tuple[Finding, ...] = ()
    directories: tuple[Path, ...] = ()

    def names(self, kind: str | None = None) -> tuple[str, ...]:
        """Return the device names of a kind such as ``nvidia.com/gpu``; None for all."""
        return tuple(name for name, device in self.devices.items() if kind in (None, device.kind))

    def resolve(self, names: Iterable[str]) -> tuple[Device, ...]:
        """Return the devices with these names, without duplicates.

        Raises:
            DeviceNotFoundError: a name is unknown; the message suggests names or how to generate a
                spec.
        """
        wanted = tuple(dict.fromkeys(names))
        for name in wanted:
            if name not in self.devices:
                raise DeviceNotFoundError(name, self._explain(name))
        return tuple(self.devices[name] for name in wanted)

    def _explain(self, name: str) -> str:
        places = ", ".join(str(directory) for directory in self.directories)
        broken = [f"{finding.subject}: {finding.detail}" for finding in self.findings]
        troubles = f"; invalid files: {'; '.join(broken)}" if broken else ""
        if not self.devices:
            return f"no CDI spec in {places} describes any device; {GENERATE}{troubles}"
        kind = name.partition("=")[0]
        known = self.names(kind) or self.names()
        stale = f"; if they are out of date, {GENERATE}" if kind.startswith("nvidia.com/") else ""
        return (
            f"the CDI specs in {places} do not describe it, "
            f"{name_hint(name, known)}{stale}{troubles}"
        )


def merge_edits(devices: Iterable[Device]) -> Edits:
    """Return the edits that give all these devices to one container."""
    return sum((device.edits for device in devices), Edits())


def cannot_give(gpus: object, why: str) -> DeviceError:
    """Return the error for a container that did not start because of its GPUs.

    Args:
        gpus: the ``gpus`` field of its spec.
        why: the engine's message.
    """
    return DeviceError(
        f"gpus={gpus!r} cannot be given to a container: {why}; is its CDI spec out of date?"
    )


def spec_directories() -> tuple[Path, ...]:
    """Return the directories of CDI specs: those of ``HYPERRUNTIME_CDI_DIRS`` (a list as in PATH),
    or the defaults.
    """
    named = [part for part in os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep) if part]
    return tuple(Path(part) for part in named or DEFAULT_DIRECTORIES)


def load_devices(directories: Sequence[str | os.PathLike[str]] | None = None) -> DeviceRegistry:
    """Return the devices of every CDI spec; a faulty file becomes a finding.

    Args:
        directories: directories to read; a later one replaces devices of an earlier one. None for
            :func:`spec_directories`.
    """
    places = (
        spec_directories() if directories is None else tuple(Path(place) for place in directories)
    )
    devices: dict[str, Device] = {}
    findings: list[Finding] = []
    for place in places:
        found: dict[str, list[Device]] = {}
        for path in _spec_files(place, findings):
            try:
                for device in read_spec(path):
                    found.setdefault(device.name, []).append(device)
            except OSError as error:
                findings.append(_broken(path, f"cannot be read: {error.strerror}"))
            except ValueError as error:
                findings.append(_broken(path, " ".join(str(error).split())))
        for name, claims in found.items():
            devices.pop(name, None)
            if len(claims) == 1:
                devices[name] = claims[0]
            else:
                first, *_, last = claims
                detail = f"describes {name}, as does {str(first.file)!r}, so the device is ignored"
                findings.append(_broken(last.file, detail, "remove one of the two"))
    return DeviceRegistry(devices=devices, findings=tuple(findings), directories=places)


def _broken(path: Path, detail: str, next_step: str = "") -> Finding:
    step = next_step or f"remove or repair it; {GENERATE}"
    return Finding(subject=f"CDI spec {str(path)!r}", ok=False, detail=detail, next_step=step)


def _spec_files(directory: Path, findings: list[Finding]) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        findings.append(
            _broken(directory, f"cannot be read: {error.strerror}", "make it a readable directory")
        )
        return
    yield from (directory / name for name in names if name.endswith(_SUFFIXES))
