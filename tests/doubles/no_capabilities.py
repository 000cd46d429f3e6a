"""Run a program on a machine where an ordinary user's namespaces give no capabilities: ``python
no_capabilities.py PROGRAM...``.

It imitates kernel.apparmor_restrict_unprivileged_userns=1, with which ``unshare`` succeeds: the map
of ids cannot be written, and nothing can be mounted (both EPERM). This is what Ubuntu 24.04's
profile `unprivileged_userns` does by its rule `audit deny capability`. Here a seccomp filter
refuses calls for mounts, and asks this process about each file that is opened for writing.

Source: Ubuntu's page "Restricted unprivileged user namespaces", user_namespaces(7), seccomp(2),
seccomp_unotify(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
from contextlib import suppress

from hyperruntime.host.seccomp import NUMBERS

_MACHINE = os.uname().machine
_OPENAT = {"x86_64": 257, "aarch64": 56}[_MACHINE]
_SECCOMP = {"x86_64": 317, "aarch64": 277}[_MACHINE]
_REFUSED = (
    *(NUMBERS[_MACHINE][name] for name in ("mount", "umount2", "pivot_root")),
    *range(428, 433),
)
_ALLOW, _ASK, _EPERM = 0x7FFF0000, 0x7FC00000, 0x50001
_NEW_LISTENER = 8
_RECEIVE, _ANSWER, _ADD_FILE = 0xC0502100, 0xC0182101, 0x40182103
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def _filter() -> int:
    """Filter the calls of this process from now on; return the descriptor that asks."""
    lines = [(0x20, 0, 0, 0)]
    for number in _REFUSED:
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, _EPERM)]
    lines += [(0x15, 0, 3, _OPENAT), (0x20, 0, 0, 32), (0x45, 0, 1, os.O_WRONLY | os.O_RDWR)]
    lines += [(0x06, 0, 0, _ASK), (0x06, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("=HBBI", *line) for line in lines)
    program = _Program(len(lines), packed)
    _libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return int(_libc.syscall(_SECCOMP, 1, _NEW_LISTENER, ctypes.byref(program)))


def _answer(asked: int) -> None:
    """Answer for ever: whoever opens its map of ids gets that of this process, which was written
    before, so that each write fails with EPERM.
    """
    while True:
        call = bytearray(80)
        with suppress(OSError):  # it has ended
            fcntl.ioctl(asked, _RECEIVE, call)
            number, pid = struct.unpack_from("=QI", call)
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                memory.seek(struct.unpack_from("=Q", call, 40)[0])
                path = memory.read(256).partition(b"\0")[0]
            if path.endswith((b"uid_map", b"gid_map")):
                with open("/proc/self/uid_map", "rb+", 0) as own:
                    fcntl.ioctl(
                        asked, _ADD_FILE, struct.pack("=QIIII", number, 2, own.fileno(), 0, 0)
                    )
            else:
                fcntl.ioctl(asked, _ANSWER, struct.pack("=QqiI", number, 0, 0, 1))


def main() -> int:
    """Run the program; return its exit code."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        socket.send_fds(theirs, [b"f"], [_filter()])
        os.execvp(sys.argv[1], sys.argv[1:])
    theirs.close()
    (asked,) = socket.recv_fds(mine, 1, 1)[1]
    threading.Thread(target=_answer, args=(asked,), daemon=True).start()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
