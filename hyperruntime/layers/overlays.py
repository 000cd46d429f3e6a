"""Whether this user can mount overlays, and what their file systems lack."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hyperruntime.driver import Finding
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID, Trials
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import find_program
from hyperruntime.host.temporary import SCRATCH, scratch_directory
from hyperruntime.layers.namespace import Job, Layers, trial_args
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.store import VARIABLE, Store

FUSE = "fuse-overlayfs"
COPY = "copy"


def has_overlay(trials: Trials, *, users: bool, program: str = "") -> bool:
    """Return whether this user can mount an overlay in the directory of containers' files.

    Args:
        trials: runs the trial.
        users: whether this user has subordinate ids.
        program: the path of a program of FUSE that mounts it; "" means that the kernel does.
    """
    with owned_directory(root=Path(scratch_directory())) as place:
        directories = [f"{place}/{name}" for name in ("lower", "upper", "work", "at")]
        for directory in (*directories, f"{place}/lower/of-image", f"{place}/lower/of-image/in"):
            os.mkdir(directory)
        # a removal in the lowest layer needs attributes of files
        job = Job(
            program="/bin/sh",
            args=("sh", "-c", f"cd {shlex.quote(f'{place}/at')} && rm -r of-image && echo overlay"),
            env={"PATH": os.defpath},
            directory="",
            record="",
            layers=Layers(
                directory=str(place),
                layers=("lower",),
                upperdir="upper",
                workdir="work",
                at="at",
                program=program,
            ),
            root=f"{place}/at",
        )
        ids = ALL_IDS if users else ONE_ID
        shown = trials.run(trial_args(job, ids, f"{place}/job")).stdout
        remove_tree(*directories)  # the kernel's own directory in "work" cannot be entered
    return b"overlay" in shown


def storage_kind(trials: Trials, *, users: bool) -> str:
    """Return what makes the files of a container from those of an image: ``overlay``, :data:`FUSE`
    or :data:`COPY`.

    Args:
        trials: runs the trials.
        users: whether this user has subordinate ids.
    """
    if has_overlay(trials, users=users):
        return "overlay"
    program = find_program(FUSE)
    return FUSE if program and has_overlay(trials, users=users, program=program) else COPY


def mounting_program(storage: str) -> str:
    """Return the path of the program that mounts layers; "" means that the kernel does.

    Args:
        storage: as :func:`storage_kind` returns it.
    """
    return find_program(FUSE) or "" if storage == FUSE else ""


def attribute_findings() -> Iterator[Finding]:
    """Yield what is lost in directories whose files can have no attributes, such as on a tmpfs
    before Linux 6.6.
    """
    for subject, place, lost, variable in (
        ("scratch", scratch_directory(), "overlays only partly work there", SCRATCH),
        ("image store", str(Store().root), "images lose those of their files", VARIABLE),
    ):
        if not _takes_attributes(place):
            yield Finding(
                subject=subject,
                ok=None,
                detail=f"files in {place} can have no attributes (user.*): {lost}",
                next_step=f"set {variable} to a directory on another disk",
            )


def _takes_attributes(place: str) -> bool:
    while not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            os.setxattr(file.fileno(), "user.hyperruntime", b"1")
    except OSError as error:  # other errors say nothing about attributes
        return error.errno != errno.ENOTSUP
    return True
