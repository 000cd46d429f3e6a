"""Read the kernel's cgroup files of a container on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

_KILLED = re.compile(r"^oom_kill [1-9]", re.MULTILINE)


def memory_cgroups(pid: int) -> tuple[Path, ...]:
    """Return the visible directories of a process's memory cgroup; empty if the process is gone."""
    try:
        return cgroup_paths(Path("/proc", str(pid), "cgroup").read_text()) if pid > 0 else ()
    except OSError:
        return ()


def cgroup_paths(text: str) -> tuple[Path, ...]:
    """Return the existing directories of a memory cgroup from ``/proc/PID/cgroup``'s text. Source: cgroups(7)."""
    paths = []
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths += [Path("/sys/fs/cgroup" + path), Path("/sys/fs/cgroup/unified" + path)]
        elif "memory" in controllers.split(","):
            paths.append(Path("/sys/fs/cgroup/memory" + path))
    return tuple(path for path in paths if os.path.isdir(path))


def kernel_killed_in(cgroup: Path) -> bool:
    """Return whether the kernel killed a process out of memory. Source: cgroup-v1 memory.txt, cgroup-v2.rst."""
    for name in ("memory.events", "memory.oom_control"):
        try:
            if _KILLED.search((cgroup / name).read_text()):
                return True
        except OSError:
            continue
    return False
