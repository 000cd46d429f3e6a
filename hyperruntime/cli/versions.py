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
    """Return the versions of this release, its interfaces, plugins, packages, Python and system, as
    JSON values.

    It imports no plugin and starts no process. A required package that is missing has the version
    ""; a package of an extra is in it only if it is installed.
    """
    required, optional = _requirements()
    return {
        "hyperruntime": __version__,
        "interfaces": {one.seam: one.version for one in registry.INTERFACES.values()},
        "plugins": [
            {
                "group": group,
                "name": name,
                "package": plugin.source,
                "version": registry.package_version(plugin.source),
            }
            for group in (*registry.INTERFACES, registry.AGENTS, registry.SERVERS)
            for name, plugin in sorted(registry.plugins(group).items())
        ],
        "packages": {name: registry.package_version(name) for name in required},
        "optional_packages": {
            name: found for name in optional if (found := registry.package_version(name))
        },
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": _system(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "location": str(Path(package_file).parent),
        "executable": sys.executable,
    }


def _requirements() -> tuple[list[str], list[str]]:
    """Return the names of the packages that this one always requires, and of those that only its
    extras require.
    """
    try:
        lines = requires(registry.OURS) or []
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        lines = []
    named = [(found[0], "extra ==" in line) for line in lines if (found := _NAME.match(line))]
    always = {name for name, is_optional in named if not is_optional}
    return sorted(always), sorted({name for name, _ in named} - always)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:  # no os-release file
        return ""
