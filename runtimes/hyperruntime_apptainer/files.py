"""Make a container's files."""

from __future__ import annotations

import os
from pathlib import Path

from hyperruntime.host.seccomp import filter_profile
from hyperruntime.spec import ContainerSpec
from hyperruntime_apptainer.args import Gpus, Places, config_text


def make_files(places: Places, spec: ContainerSpec, gpus: Gpus) -> None:
    """Make the directories and files of a container that Apptainer needs for its start.

    Raises:
        OSError: they cannot be written.
    """
    for directory in (places.sys, places.tmp, places.shm, places.devices, places.libraries):
        os.mkdir(directory)
    os.chmod(places.tmp, 0o1777)
    needs_none = places.own_root and not gpus.flag
    Path(places.config).write_text(config_text(spec, places.devices if needs_none else ""))
    Path(places.filter).write_text(filter_profile())
    for name, path in gpus.libraries.items():
        os.symlink(path, f"{places.libraries}/{name}")
