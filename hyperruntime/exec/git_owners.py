"""Let git work in the repositories of other users that the caller put or mounted into a container.

Git refuses a repository of another user unless ``safe.directory`` names it, because its settings
may name programs. The owner of a mounted or copied file is often another user in the container. The
caller has chosen the repository, so git may use it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from hyperruntime.spec import ContainerSpec

_COUNT = "GIT_CONFIG_COUNT"
_MOST = 64  # variables are part of each command


class GitOwners:
    """The repositories of one container that came from the host."""

    def __init__(self, spec: ContainerSpec, paths: Iterable[str] = ()) -> None:
        """Begin with the mounts that are repositories, and with those of a snapshot."""
        self._is_given = _COUNT in spec.env
        self._paths: dict[str, None] = dict.fromkeys(paths)
        for mount in spec.mounts:
            self.add(mount.source, mount.target)

    @property
    def paths(self) -> tuple[str, ...]:
        """Where they are in the container."""
        return tuple(self._paths)

    def add(self, source: str | os.PathLike[str], target: str) -> None:
        """Note a path of the host that is now at ``target``; ignored unless it is the top of a
        repository.
        """
        if os.path.lexists(os.path.join(source, ".git")) and len(self._paths) < _MOST:
            self._paths[posixpath.normpath(target)] = None

    def note(self, source: str | os.PathLike[str], target: str, options: Mapping[str, Any]) -> None:
        """Note a copy to ``target``; one for a named user is that user's, and its path is not shown
        to others.
        """
        if options.get("user") is None:
            self.add(source, target)

    def env(self) -> Mapping[str, str]:
        """Return the variables for every command; empty without repositories, and if the spec has
        such variables.

        Source: git-config(1), ``GIT_CONFIG_COUNT`` and ``safe.directory``.
        """
        paths = () if self._is_given else tuple(self._paths)
        found = {_COUNT: str(len(paths))} if paths else {}
        for number, path in enumerate(paths):
            found |= {
                f"GIT_CONFIG_KEY_{number}": "safe.directory",
                f"GIT_CONFIG_VALUE_{number}": path,
            }
        return found
