"""A directory as an agent may leave it: with modules and programs of all names that a process may
look for.

Each of them leaves a mark when it runs.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import attrs

from tests.doubles.packages import install_plugin

# It imports only what is built into Python, because the directory has a module for everything else.
_MODULE = """\
import posix
mark = posix.open({marks!r} + "/module " + __name__ + "." + str(posix.getpid()), posix.O_CREAT | posix.O_WRONLY, 0o644)
posix.write(mark, posix.read(posix.open("/proc/self/cmdline", posix.O_RDONLY), 4096))
"""
_PROGRAM = '#!/bin/sh\necho "$0 $*" >"{marks}/program ${{0##*/}}.$$"\n'
_CUSTOMIZE = ("sitecustomize", "usercustomize")
_GROUPS = (
    "runtimes",
    "domains",
    "environments",
    "trainers",
    "agents",
    "selection",
    "loggers",
    "launchers",
)
PLUGIN = "planted"  # the name of its entry points


@attrs.frozen
class HostileDirectory:
    """The directory.

    Attributes:
        path: the directory.
        marks: another directory, with a file for each module and program that ran.
    """

    path: Path
    marks: Path

    def ran(self) -> dict[str, str]:
        """Return the modules and programs of the directory that ran, each with the command line of
        its process.
        """
        found = sorted(self.marks.iterdir())
        return {mark.name: mark.read_text().replace("\0", " ").strip() for mark in found}


def make_hostile_directory(parent: Path) -> HostileDirectory:
    """Make the directory and the one for its marks."""
    made = HostileDirectory(parent / "hostile", parent / "marks")
    made.path.mkdir(parents=True)
    made.marks.mkdir()
    modules = {*sys.stdlib_module_names, *packages_distributions(), *_CUSTOMIZE, PLUGIN}
    _link(
        made.path,
        _MODULE.format(marks=str(made.marks)),
        {f"{name}.py" for name in modules if name.isidentifier()},
    )
    package = made.path / "hyperruntime"
    package.mkdir()
    os.link(made.path / "click.py", package / "__init__.py")
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if os.path.isdir(folder)]
    programs = {name for folder in folders for name in os.listdir(folder)} - set(
        os.listdir(made.path)
    )
    _link(made.path, _PROGRAM.format(marks=made.marks), programs)
    _plant_entry_points(made.path)
    return made


def _link(folder: Path, text: str, names: set[str]) -> None:
    first, *others = sorted(names)
    (folder / first).write_text(text)
    (folder / first).chmod(0o755)
    for name in others:
        os.link(folder / first, folder / name)


def _plant_entry_points(folder: Path) -> None:
    groups = "".join(f"[hyperruntime.{group}]\n{PLUGIN} = {PLUGIN}:Planted\n" for group in _GROUPS)
    install_plugin(folder, PLUGIN, groups)
