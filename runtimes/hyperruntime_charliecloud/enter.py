"""Start a container by ``ch-run``, and add what that does not have.

``unshare ... python -I -S enter.py ROOT FACTS TARGET...``, as root of a user namespace and the
first process of a pid namespace. It makes the mounts, and a ``/dev``, ``/proc`` and ``/sys`` that
show nothing of the host. The container cannot undo them, because the mount namespace of ``ch-run``
belongs to a user namespace below this one. Then it starts ``ch-run``, which makes the container.

A program that ``ch-run`` starts has all capabilities in the container, and no filter of system
calls. So no program of the image may run like this: this process traces ``ch-run`` until that has
executed the image's shell, but not its first instruction. It enters the container's namespaces,
kills what it traced, gives up all capabilities, sets the filter, and becomes the shell.

It runs as a program, and imports the standard library only. Sources: ptrace(2), setns(2), prctl(2),
capabilities(7), mount_namespaces(7), mount_setattr(2), netdevice(7), ch-run(1).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

_READ_ONLY = 0x1
_SAFE = 0x6  # no set-user-ID programs and no devices
_BIND = 0x5000  # MS_BIND | MS_REC
_MOUNT_SETATTR = 442  # the same number on all architectures
_AT_RECURSIVE = 0x8000
_DETACH = 0x2
_TRACE_ME = 0
_CONTINUE = 7
_PARENT_DEATH_SIGNAL = 1
_SECCOMP_FILTER = (22, 2)
_DROP_CAPABILITY = 24
_NO_NEW_PRIVILEGES = 38
_SET_INTERFACE_FLAGS = 0x8914
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
# What `ch-run` mounts below the root of the image: some of the host's files.
_MOUNTED = "tmp etc/hosts etc/machine-id etc/resolv.conf var/opt/cray/hugetlbfs".split()
_MOUNTED += ["var/opt/cray/alps/spool"]
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    done = _libc.mount(*words, ctypes.c_ulong(flags), options.encode())
    _check(done, f"the mount of {target}")


def _bind(source: str, target: str, attributes: int) -> None:
    """Mount a path with all that is mounted below it, which gets the attributes too."""
    _mount(source, target, "none", _BIND)
    words = (0, os.fsencode(target), _AT_RECURSIVE)
    chosen = struct.pack("4Q", attributes, 0, 0, 0)  # struct mount_attr
    done = _libc.syscall(_MOUNT_SETATTR, *words, chosen, ctypes.c_size_t(len(chosen)))
    _check(done, f"the attributes of {target} (they need Linux 5.12)")


def _memory(target: str, mode: str, size: int | None = None) -> None:
    limit = "" if size is None else f",size={size}"
    _mount("tmpfs", target, "tmpfs", _SAFE, f"mode={mode}{limit}")


def _make_own(devices: str, shm_bytes: int | None) -> None:
    """Mount what every container has for itself. `ch-run` takes it from the host's paths."""
    _memory(devices, "755")
    for name in _DEVICES:
        os.close(os.open(f"{devices}/{name}", os.O_CREAT, 0o644))
        _mount(f"/dev/{name}", f"{devices}/{name}", "none", _BIND)
    for name, rest in _LINKS.items():
        os.symlink(f"/proc/self/fd{rest}", f"{devices}/{name}")
    os.symlink("pts/ptmx", f"{devices}/ptmx")
    os.mkdir(f"{devices}/pts")
    _mount("devpts", f"{devices}/pts", "devpts", 0, "newinstance,ptmxmode=666,mode=620")
    os.mkdir(f"{devices}/shm")
    _memory(f"{devices}/shm", "1777", shm_bytes)
    _bind("/proc/sys", "/proc/sys", _READ_ONLY)
    _memory("/sys", "555")
    _bind("/sys", "/sys", _READ_ONLY)


def _make_mount(source: str, read_only: bool, place: str) -> None:
    """Mount a path of the host; the way to it in another mount must not lead out of that."""
    if os.path.realpath(place) != place:
        raise OSError(f"the path {place} of a mount is a link; remove the link")
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    elif not os.path.exists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT, 0o644))
    _bind(source, place, _SAFE | _READ_ONLY * read_only)


def _make_files(root: str, facts: dict[str, Any], targets: list[str]) -> None:
    """Make all directories and mounts; ``targets`` are their paths, in this order."""
    places = iter([root + target for target in targets])
    for mode, place in [(mode, next(places)) for mode in facts["made"]]:
        if not os.path.isdir(place):
            os.makedirs(place)
            os.chmod(place, mode)
    _make_own(f"{root}/dev", facts["shm"])
    for size in facts["memory"]:
        _memory(next(places), "1777", size)
    for source, read_only in facts["mounts"]:
        _make_mount(source, read_only, next(places))
    _mount(f"{root}/dev", "/dev", "none", _BIND)


def _trace(args: list[str]) -> int:
    """Return the pid of a traced program that has entered a user namespace and executed another
    program there; it is stopped.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _check(_libc.ptrace(_TRACE_ME, 0, None, None), "ptrace (see kernel.yama.ptrace_scope)")
            os.execve(args[0], args, os.environ)
        except OSError as error:
            os.write(2, f"{error}\n".encode())
        os._exit(126)
    own = os.readlink("/proc/self/ns/user")
    while os.WIFSTOPPED(status := os.waitpid(pid, 0)[1]):
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP and os.readlink(f"/proc/{pid}/ns/user") != own:
            return pid
        passed = ctypes.c_ulong(number * (number != signal.SIGTRAP))
        _check(_libc.ptrace(_CONTINUE, pid, None, passed), "ptrace")
    sys.exit(1)  # it has said why


def _enter(pid: int) -> None:
    """Enter the container of a traced process, end the process, and unmount the host's files."""
    spaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("user", "mnt")]
    for space in spaces:
        _check(_libc.setns(space, 0), "setns")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for path in _MOUNTED:
        _libc.umount2(f"/{path}".encode(), _DETACH)  # mounts that this program made stay


def _give_up_rights(lines: bytes) -> None:
    """Give up all capabilities, for the next program and all after it, and set the filter."""
    capability = 0
    while _libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0) == 0:
        capability += 1
    _check(_libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    if lines:
        buffer = ctypes.create_string_buffer(lines)
        program = struct.pack("HP", len(lines) // 8, ctypes.addressof(buffer))  # sock_fprog
        _check(_libc.prctl(*_SECCOMP_FILTER, program, 0, 0), "seccomp")


def main() -> None:
    """Become the shell of a container."""
    root = os.path.realpath(sys.argv[1])
    facts = json.loads(sys.argv[2])
    with open(facts["filter"] or os.devnull, "rb") as file:
        lines = file.read()
    mask = os.umask(0o022)
    socket.sethostname(facts["hostname"])
    _make_files(root, facts, sys.argv[3:])
    with socket.socket() as any_socket, suppress(PermissionError):  # the network is the host's
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sh14x", b"lo", 1))
    _enter(_trace([*facts["command"], root, "--", "/bin/sh"]))
    os.umask(mask)
    _give_up_rights(lines)
    os.execve("/bin/sh", facts["args"], facts["env"])


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
