"""Run a program that can write to nothing of this machine but some directories.

``python -I -S read_only_host.py DIRECTORY... -- PROGRAM ARGUMENT...``. The program gets a mount
namespace in which all file systems are read-only, except ``/proc`` and the directories. Its user
stays the same. If the user is root, what belongs to no process in ``/proc`` is read-only too, and
``/proc`` has only the program's own processes, because ``/proc/PID/root`` of another one leads out
of the namespace.

Where Apptainer unpacks an image, it writes metadata as the user, through links that the image has
in ``/.singularity.d`` (seen with Apptainer 1.4.5). Here such a link leads to a read-only file
system.

It runs as a program, and imports the standard library only. Source: mount_setattr(2),
user_namespaces(7), mount_namespaces(7), pid_namespaces(7), proc(5), prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_NEW_MOUNTS = 0x00020000
_NEW_USERS = 0x10000000
_NEW_PROCESSES = 0x20000000
_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 0x40000
_MOUNT_SETATTR = 442  # the same number on all architectures
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_READ_ONLY = 0x1
_SET_PARENT_DEATH_SIGNAL = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """``struct mount_attr``."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str | None, target: str, flags: int) -> None:
    name = None if source is None else os.fsencode(source)
    _check(
        _libc.mount(name, os.fsencode(target), None, ctypes.c_ulong(flags), None),
        f"the mount of {target}",
    )


def _set(path: str, *, read_only: bool, everything_below: bool = False) -> None:
    bit = _READ_ONLY if read_only else 0
    attributes = _Attributes(attr_set=bit, attr_clr=bit ^ _READ_ONLY)
    flags = _AT_RECURSIVE if everything_below else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(attributes), size
    )
    _check(done, f"the mode of {path}")


def _enter_namespace() -> None:
    """Enter a new mount namespace; without the right to do so, in a user namespace in which the
    user stays the same.

    From a user namespace, ``/proc/PID/root`` of a process outside cannot be opened. Else the
    program gets an own ``/proc``.
    """
    uid = os.geteuid()
    gid = os.getegid()
    if _libc.unshare(_NEW_MOUNTS | _NEW_PROCESSES) == 0:
        _continue_in_child()
        _mount(None, "/", _RECURSIVE | _PRIVATE)
        _check(
            _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None), "the mount of /proc"
        )
        return
    _check(_libc.unshare(_NEW_MOUNTS | _NEW_USERS), "a user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _mount(None, "/", _RECURSIVE | _PRIVATE)


def _of_the_kernel() -> list[str]:
    """Return the paths in ``/proc`` with which root can change the kernel, such as
    ``/proc/sys``.
    """
    with os.scandir("/proc") as entries:
        return [
            entry.path
            for entry in entries
            if not (entry.name.isdecimal() or entry.is_symlink())
            and (entry.is_dir() or entry.stat().st_mode & 0o222)
        ]


def _continue_in_child() -> None:
    """Return in a child process, the first of the namespace; this process waits for it and ends as
    it ends.
    """
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    _check(
        _libc.prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0),
        "the signal of the parent",
    )


def main() -> None:
    """Run the program of the command line; this function returns only if it cannot be started."""
    at = sys.argv.index("--")
    directories = sys.argv[1:at]
    args = sys.argv[at + 1 :]
    here = os.getcwd()
    try:
        _enter_namespace()
        for directory in directories:
            _mount(directory, directory, _BIND)
        if os.geteuid() == 0:
            for path in _of_the_kernel():
                _mount(path, path, _BIND | _RECURSIVE)
        _set("/", read_only=True, everything_below=True)
        for directory in (*directories, "/proc"):
            _set(directory, read_only=False)
    except OSError as error:
        sys.exit(
            f"FATAL: the pull cannot be kept from writing outside of its directory ({error}); "
            "it needs Linux 5.12 or newer and user namespaces: make the image on another "
            "machine, and load it with `hyperrun image load`"
        )
    os.chdir(here)  # below the new mounts
    os.execvp(args[0], args)


if __name__ == "__main__":
    main()
