"""The program that is started as Podman, and the variables that it gets.

Podman before 5.8.4 gives a container each variable of its own environment that the image names
without a value, also by a pattern such as ``*`` (CVE-2026-57231). So Podman gets only variables
that it needs, and none of them is a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hyperruntime.host.inherited import named_environment, program_environment
from hyperruntime_podman.args import NAME

VARIABLE = "HYPERRUNTIME_PODMAN"
NETWORK_HINT = (
    "for networks of ordinary users it needs pasta (package `passt`) with Podman 5 and newer, "
    "`slirp4netns` with Podman 4"
)

_SYSTEM = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")
_NEEDED = (
    # where programs, configuration, stores and temporary files are. Source: podman(1),
    # "Environment Variables"; XDG Base Directory Specification
    "PATH",
    "HOME",
    "TMPDIR",
    "XDG_*",
    # a wrapper such as podman-hpc asks for the name of the user
    "USER",
    "LOGNAME",
    # Podman's files and options. Source: containers.conf(5), containers-storage.conf(5), and the
    # pages containers-registries.conf(5) and containers-auth.json(5)
    "CONTAINERS_*",
    "STORAGE_*",
    "REGISTRIES_CONFIG_PATH",
    "REGISTRY_AUTH_FILE",
    "DOCKER_CONFIG",
    # the firewall program. Source: netavark(1)
    "NETAVARK_FW",
    # Podman's note that it is in its own user namespace already, as in `podman unshare`
    "_CONTAINERS_*",
    # systemd makes the cgroups of an ordinary user's containers
    "DBUS_SESSION_BUS_ADDRESS",
    # the texts of messages, names that are not ASCII (conmon), and times
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    # the configuration of podman-hpc, and the directory of its squashed images. Source: its README
    "PODMANHPC_*",
    "SQUASH_DIR",
    "SCRATCH",
)
# A build reaches registries and other servers, and has options of its own. Source: podman-build(1).
_BUILDS = ("*_proxy", "*_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "BUILDAH_*")
# Warnings about the machine, which no caller can change; they would be in the way of messages.
_QUIET = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1", "SUPPRESS_BOLTDB_WARNING": "1"}
# Podman replaces these in paths of the file
_IN_PATH = re.compile(r"\$\{?(\w+)")


def program() -> str:
    """Return the name or the path of the program: the value of ``HYPERRUNTIME_PODMAN``, else
    ``podman``.
    """
    return os.environ.get(VARIABLE) or NAME


def install_hint() -> str:
    """Return what to do if the program is missing."""
    if (chosen := program()) != NAME:
        return f"{VARIABLE} names {chosen!r}: correct it, or unset it for `{NAME}`"
    return (
        f"install it, on Debian with `apt-get install podman runc uidmap catatonit`; {NETWORK_HINT}"
    )


def needed_variables(*, build: bool = False) -> dict[str, str]:
    """Return the variables that Podman needs; a build also needs proxies and certificates."""
    names = (*_NEEDED, *_in_paths(storage_files()), *(_BUILDS if build else ()))
    return {**named_environment(os.environ, names), **_QUIET}


def pull_variables() -> dict[str, str]:
    """Return the variables of a pull: all of a system program.

    A registry's credential helper, which Podman starts, has variables of its own. A pull runs
    nothing of an image.
    """
    return {**program_environment(os.environ), **_QUIET}


def storage_files() -> tuple[Path, ...]:
    """Return the files that may configure the store. Source: containers-storage.conf(5)."""
    if named := os.environ.get("CONTAINERS_STORAGE_CONF"):
        return (Path(named),)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = () if os.geteuid() == 0 else (Path(home, "containers", "storage.conf"),)
    return (*own, *map(Path, _SYSTEM))


def _in_paths(files: Iterable[Path]) -> set[str]:
    """Return the variables in the paths of a store, such as ``graphroot = "$SCRATCH/images"``."""
    found: set[str] = set()
    for file in files:
        with suppress(OSError):
            found.update(_IN_PATH.findall(file.read_text(errors="replace")))
    return found
