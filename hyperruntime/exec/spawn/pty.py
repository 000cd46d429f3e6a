"""Pseudo-terminals of a container, opened from the host.

Every engine gives a container its own terminals, as the file system ``/dev/pts``. The host opens
``ptmx`` there through ``/proc/PID/root`` of a process of the container. So the command gets the
container's terminal and never the host's, and the image needs no program for it. The container is
not trusted: no symbolic link in it is followed, and only a device that is a terminal multiplexer is
opened. The kernel returns the other end, so no name is looked up for it. Design:
docs/design/exec.md#processes-and-terminals.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.process import run_process

# Source: ioctl_tty(2) and asm-generic/ioctls.h; the numbers hold for x86, ARM, RISC-V and s390.
_TIOCGPTN = 0x80045430
_TIOCSPTLCK = 0x40045431
_TIOCSIG = 0x40045436
_TIOCGPTPEER = 0x5441
_PTMX = os.makedev(5, 2)  # source: the kernel's list of devices, admin-guide/devices.txt
_IUTF8 = 0x4000  # source: termios(3); the line editing of the kernel then erases whole characters
_CHUNK_BYTES = 65536
_MOST_REST = 4 * _CHUNK_BYTES  # bytes after the command's end; the kernel keeps fewer
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class TerminalEnd(Protocol):
    """The caller's end of a terminal: of a container of this machine, or of a node."""

    @property
    def master(self) -> int:
        """A non-blocking descriptor with the terminal's output, which takes its input."""
        ...

    @property
    def name(self) -> str:
        """Path of the other end in the container."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        ...

    def send_signal(self, number: int) -> None:
        """Send SIGINT, SIGQUIT or SIGTSTP to the processes in the foreground."""
        ...

    def take_rest(self) -> bytes:
        """Return the output that is left after the command's end."""
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


@attrs.frozen
class Pty:
    """One open pseudo-terminal.

    Attributes:
        master: the host's end, a non-blocking descriptor.
        name: path of the other end in the container.
    """

    master: int
    name: str

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window; the processes in the foreground get SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send_signal(self, number: int) -> None:
        """Send SIGINT, SIGQUIT or SIGTSTP to the processes in the foreground.

        Raises:
            OSError: ``number`` is another signal.
        """
        fcntl.ioctl(self.master, _TIOCSIG, number)

    def take_rest(self) -> bytes:
        """Return the output that is there after the command's end; a job that it left may write
        more for ever.
        """
        rest = b""
        with suppress(OSError):  # nothing is left
            while len(rest) < _MOST_REST and (chunk := os.read(self.master, _CHUNK_BYTES)):
                rest += chunk
        return rest

    def close(self) -> None:
        """Close the host's end; the processes of the terminal get SIGHUP."""
        os.close(self.master)


def open_pty(pid: int, is_expected: Callable[[], bool] = lambda: True) -> Pty:
    """Open a new terminal of a container for one of its processes, which becomes its owner.

    Args:
        pid: pid of the process on this machine.
        is_expected: whether the pid is still that of the process; asked after the process was
            opened, because the kernel gives the pid of an ended process to another one.

    Raises:
        OSError: this user may not enter the container, it has no terminals, or the process has
            ended.
    """
    with ExitStack() as stack:

        def enter(name: str, parent: int | None, flags: int) -> int:
            return stack.enter_context(closing_descriptor(os.open(name, flags, dir_fd=parent)))

        directory = _PATH | os.O_DIRECTORY
        process = enter(f"/proc/{pid}", None, directory)
        if not is_expected():
            raise OSError("its process has ended")
        root = enter("root", process, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        terminals = enter("pts", enter("dev", root, directory), directory)
        multiplexer = enter("ptmx", terminals, _PATH)
        if os.fstat(multiplexer).st_rdev != _PTMX:
            raise OSError("/dev/pts/ptmx is not a terminal multiplexer")
        master = os.open(
            f"/proc/self/fd/{multiplexer}", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        )
        try:
            number = _prepare(master)
            # With O_PATH it is not opened, so its first user is the command. Source: ioctl_tty(2),
            # Linux 4.13.
            peer = fcntl.ioctl(master, _TIOCGPTPEER, os.O_PATH | os.O_CLOEXEC)
            _own(process, stack.enter_context(closing_descriptor(peer)))
        except BaseException:
            os.close(master)
            raise
        return Pty(master, f"/dev/pts/{number}")


def _prepare(master: int) -> int:
    """Unlock the other end, and return its number."""
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    modes = termios.tcgetattr(master)
    modes[0] |= _IUTF8
    termios.tcsetattr(master, termios.TCSANOW, modes)
    number: int = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]
    return number


def _own(process: int, terminal: int) -> None:
    """Give a terminal to the user of a process, as a login does, so that its programs may open it
    by name.

    An ordinary user may do so only in the user namespace of the container, which ``nsenter``
    enters.
    """
    uid = int(_lines_of(process, "status")["Uid"].split()[1])
    if os.fstat(terminal).st_uid == uid:
        return
    if os.geteuid() == 0:
        os.chown(f"/proc/self/fd/{terminal}", uid, -1)
        return
    inside = _uid_inside(process, uid)
    namespace = f"--user=/proc/{os.getpid()}/fd/{process}/ns/user"
    args = ["nsenter", namespace, "chown", str(inside), "/proc/self/fd/0"]
    allowed_s = limit_s("", "unshare")
    try:
        done = run_process(args, input=terminal, timeout_s=allowed_s)
    except TimeoutError:
        why = f"the terminal was not given to its user within {allowed_s:.0f} s"
        raise OSError(why) from None
    if done.exit_code != 0:
        raise OSError(f"the terminal cannot be given to its user: {done.error_text}")


def _uid_inside(process: int, uid: int) -> int:
    """Return the number that a uid has in the user namespace of a process. Source:
    user_namespaces(7).
    """
    with open(os.open("uid_map", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as table:
        for line in table:
            first, outside, count = map(int, line.split())
            if outside <= uid < outside + count:
                return first + uid - outside
    raise OSError(f"uid {uid} is not a user of the container")


def _lines_of(process: int, name: str) -> dict[str, str]:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as file:
        return dict(re.findall(r"^(\w+):\s*(.*)$", file.read(), re.MULTILINE))
