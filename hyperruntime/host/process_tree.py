"""Find a container's processes and cgroups from the host, and measure their memory.

Its processes are those of its pid namespace, which no process in it can leave. Source:
pid_namespaces(7), proc(5).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from hyperruntime.host.process import pid_namespace, read_proc

_KIB = 1024
_KILLED = re.compile(r"^oom_kill [1-9]", re.MULTILINE)
_OCTAL = re.compile(rb"\\([0-7]{3})")


@attrs.frozen(kw_only=True)
class Namespace:
    """A container's pid namespace.

    Attributes:
        inode: identifies it while it exists.
        init: pid of its first process on the host; all others end with it.
        visible: pid of a process in it whose files this user may look at, mostly the same.
        handle: pidfd of that process; stays valid if the pid is reused.
        tmpfs: paths on the host of the container's memory file systems.
    """

    inode: int
    init: int
    visible: int
    handle: int
    tmpfs: tuple[str, ...] = ()

    def kill(self) -> None:
        """Kill every process in it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        """Close the handle."""
        os.close(self.handle)


def find_namespace(mark: str, given: Collection[str] = ()) -> Namespace | None:
    """Return the pid namespace of the processes that see a mount whose source ends with ``mark``.

    Args:
        mark: end of a mount source that only this container has.
        given: mount points of the host's own directories in it, whose memory is not the
            container's.

    Returns:
        None if the container shares the host's pid namespace, or its processes run on another
        machine or may not be read by this user.
    """
    wanted = mark.encode() + b" "
    ours = pid_namespace()
    for pid in _pids():
        inode = pid_namespace(pid)
        if inode in (0, ours) or wanted not in read_proc(pid, "mountinfo"):
            continue
        namespace = _open_namespace(pid, inode, given)
        if namespace is not None:
            return namespace
    return None


def container_namespace(name: str, exchange: str, given: Collection[str] = ()) -> Namespace | None:
    """Return the pid namespace of a container of this library, as :func:`find_namespace` does.

    Args:
        name: the container's name.
        exchange: its exchange directory on the host, which must exist.
        given: mount points of the host's own directories in it, whose memory is not the
            container's.
    """
    return find_namespace(f"{name}/{os.path.basename(exchange)}", given)


def _open_namespace(member: str, inode: int, given: Collection[str]) -> Namespace | None:
    first = _first_of(member, inode)
    if not first:
        return None
    try:
        handle = os.pidfd_open(int(first))
    except OSError:
        return None
    if _first_of(member, inode) != first:
        os.close(handle)
        return None
    seen = first if pid_namespace(first) else member  # whose files this user may look at
    return Namespace(
        inode=inode,
        init=int(first),
        visible=int(seen),
        handle=handle,
        tmpfs=tuple(_own_tmpfs(seen, given)),
    )


def _first_of(member: str, inode: int) -> str:
    """Return the first process of a namespace, or ""; one that this user may not read, as of a
    setuid program, is found above a member.
    """
    for pid in (member, *_pids()):
        if pid_namespace(pid) == inode and _is_first(pid):
            return pid
    depth = len(_pids_inside(member))
    above = _parent(member)
    while above and len(_pids_inside(above)) == depth:
        if _is_first(above):
            return above
        above = _parent(above)
    return ""


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone or has none that is visible."""
    return int(_parent(str(pid)) or 0)


def members(namespaces: Iterable[Namespace]) -> dict[int, list[str]]:
    """Return the pids in each namespace, by its inode.

    A process that this user may not read (it changed its user) counts to the namespace of its
    parent.
    """
    found: dict[int, list[str]] = {namespace.inode: [] for namespace in namespaces}
    places: dict[str, int] = {}
    hidden: dict[str, str] = {}
    for pid in _pids():
        try:
            places[pid] = os.stat(f"/proc/{pid}/ns/pid").st_ino
        except PermissionError:
            hidden[pid] = _parent(pid)
        except OSError:
            continue
    for pid, parent in hidden.items():
        above = parent
        seen = {pid}
        while above in hidden and above not in seen:
            seen.add(above)
            above = hidden[above]
        places[pid] = places.get(above, 0)
    for pid, inode in places.items():
        if inode in found:
            found[inode].append(pid)
    return found


def rough_memory_bytes(pids: Iterable[str], tmpfs: Iterable[str] = ()) -> int:
    """Return an upper bound of the memory of processes and memory file systems; shared pages count
    for each process.

    Args:
        pids: pids on the host.
        tmpfs: paths on the host of memory file systems.
    """
    return sum(
        _kib(read_proc(pid, "status"), (b"VmRSS", b"VmSwap")) for pid in pids
    ) * _KIB + tmpfs_bytes(tmpfs)


def exact_memory_bytes(pids: Iterable[str], tmpfs: Iterable[str] = ()) -> int:
    """Return the memory of processes and memory file systems, each shared page once; slower than
    the upper bound.

    Args:
        pids: pids on the host.
        tmpfs: paths on the host of memory file systems.
    """
    used = shared = 0
    for pid in pids:
        rollup = read_proc(pid, "smaps_rollup")
        if not rollup:  # not readable by this user, or gone
            used += _kib(read_proc(pid, "status"), (b"VmRSS", b"VmSwap"))
            continue
        used += _kib(rollup, (b"Pss", b"SwapPss"))
        shared += _kib(rollup, (b"Pss_Shmem",))
    return used * _KIB + max(0, tmpfs_bytes(tmpfs) - shared * _KIB)


def _kib(text: bytes, names: tuple[bytes, ...]) -> int:
    rows = (line.split() for line in text.splitlines())
    return sum(
        int(row[1])
        for row in rows
        if len(row) > 1 and row[0].rstrip(b":") in names and row[1].isdigit()
    )


def tmpfs_bytes(paths: Iterable[str]) -> int:
    """Return the bytes used in memory file systems, each file system once."""
    total = 0
    seen = set()
    for path in paths:
        try:
            device = os.stat(path).st_dev
            facts = os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            total += (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        seen.add(device)
    return total


def memory_cgroups(pid: int) -> tuple[Path, ...]:
    """Return the visible directories of a process's memory cgroup; empty if the process is gone."""
    return cgroup_paths(os.fsdecode(read_proc(pid, "cgroup")))


def cgroup_paths(text: str) -> tuple[Path, ...]:
    """Return the existing directories of a memory cgroup from ``/proc/PID/cgroup``'s text. Source:
    cgroups(7).
    """
    paths = []
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths += [Path("/sys/fs/cgroup" + path), Path("/sys/fs/cgroup/unified" + path)]
        elif "memory" in controllers.split(","):
            paths.append(Path("/sys/fs/cgroup/memory" + path))
    return tuple(path for path in paths if os.path.isdir(path))


def kernel_killed_in(cgroup: Path) -> bool:
    """Return whether the kernel killed a process for lack of memory. Source: cgroup-v1 memory.txt,
    cgroup-v2.rst.
    """
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError):
            if _KILLED.search((cgroup / name).read_text()):
                return True
    return False


def _own_tmpfs(pid: str, given: Collection[str]) -> Iterator[str]:
    """Yield the writable memory file systems of a process, without those mounted from the host."""
    hosts = {line.split()[2] for line in read_proc("self", "mountinfo").splitlines()}
    for line in read_proc(pid, "mountinfo").splitlines():
        before, _, after = line.partition(b" - ")
        fields = before.split()
        # else it is the host's
        own = len(fields) > 5 and (fields[3] == b"/" or fields[2] not in hosts)
        if not own or not after.startswith(b"tmpfs ") or b"rw" not in fields[5].split(b","):
            continue
        point = os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), fields[4]))
        if not any(f"{point}/".startswith(f"{target}/") for target in given):
            yield f"/proc/{pid}/root{point}"


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _is_first(pid: str) -> bool:
    """Return whether a process has pid 1 in its namespace."""
    return _pids_inside(pid)[-1:] == [b"1"]


def _pids_inside(pid: str) -> list[bytes]:
    """Return the pids of a process, in its namespace and in those above; its own is last."""
    for line in read_proc(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return line.split()[1:]
    return []


def _parent(pid: str) -> str:
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return fields[1].decode() if len(fields) > 1 else ""
