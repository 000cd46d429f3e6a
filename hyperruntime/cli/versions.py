"""``hyperrun --version --json``: the versions that a bug report needs."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from hyperruntime import __file__ as package_file
from hyperruntime import __version__, registry

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def version_facts() -> dict[str, Any]:
    """Return the versions of this release, its interfaces, plugins, packages, Python and system, as JSON values.

    It imports no plugin and starts no process. An installed package that is missing has the version "".
    """
    return {
        "hyperruntime": __version__,
        "interfaces": {one.seam: one.version for one in registry.INTERFACES.values()},
        "plugins": [
            {"group": group, "name": name, "package": plugin.source, "version": registry.package_version(plugin.source)}
            for group in (*registry.INTERFACES, registry.AGENTS)
            for name, plugin in sorted(registry.plugins(group).items())
        ],
        "packages": {name: registry.package_version(name) for name in _requirements()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": _system(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "location": str(Path(package_file).parent),
        "executable": sys.executable,
    }


def _requirements() -> list[str]:
    """Return the names of the packages that this one requires without any extra."""
    try:
        lines = requires(registry.OURS) or []
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        lines = []
    names = (_NAME.match(line) for line in lines if "extra ==" not in line)
    return sorted(name[0] for name in names if name)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:  # no os-release file
        return ""
