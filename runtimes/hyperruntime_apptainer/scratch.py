"""Choose the directory for containers' files on this machine, and make a container's files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hyperruntime.host.engine_findings import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.host.seccomp import filter_profile
from hyperruntime.spec import ContainerSpec
from hyperruntime_apptainer.args import Places, config_text

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
VARIABLES = ("APPTAINER_TMPDIR", "TMPDIR", "SCRATCH")


def scratch_directory() -> str:
    """Return the first usable one of ``APPTAINER_TMPDIR``, ``TMPDIR``, ``SCRATCH``, ``/tmp`` and
    ``/var/tmp``.

    Without a usable one, return ``/tmp``.
    """
    return next((path for _, path, why in candidates() if not why), "/tmp")  # noqa: S108


def candidates() -> Iterator[tuple[str, str, str]]:
    """Yield each candidate's variable, directory and the reason why it is unusable ("" if it is
    usable).
    """
    for name in VARIABLES:
        if path := os.environ.get(name):
            yield name, path, why_unusable(path)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108 - a directory of our own is made in it
        yield "default", path, why_unusable(path)


def make_files(places: Places, spec: ContainerSpec) -> None:
    """Make the directories and files of a container that Apptainer needs for its start.

    Raises:
        OSError: they cannot be written.
    """
    os.mkdir(places.files, 0o700)
    for directory in (
        places.layer,
        places.sys,
        places.tmp,
        places.shm,
        places.devices,
        places.libraries,
    ):
        os.mkdir(directory)
    Path(places.config).write_text(config_text(spec))
    Path(places.filter).write_text(filter_profile())


def why_unusable(path: str) -> str:
    """Return why a directory cannot hold containers' files, or ""."""
    if not os.path.isabs(path):
        return "not an absolute path"
    if not _PLAIN_PATH.fullmatch(path):
        return "Apptainer would misread this path (only letters, digits and /._+- are safe)"
    if not os.path.isdir(path):
        return "no such directory"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        return f"on {kind}, which cannot hold a writable overlay"
    return (
        "mounted noexec: programs there cannot be started"
        if os.statvfs(path).f_flag & os.ST_NOEXEC
        else ""
    )
