"""A seccomp filter for engines that have none of their own: as a BPF program, and as an OCI
profile.

It denies system calls that programs of agents do not need and that exploits of the kernel often
use: for modules, BPF, keys, mounts, namespaces and io_uring. It also denies vsock, because a
network namespace does not hide the host of a virtual machine.
Sources: seccomp(2), linux/seccomp.h, linux/bpf_common.h, the kernel's system call tables, OCI
runtime specification ("Seccomp").
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

# System calls by machine; the newer ones have the same number on each.
_NEW_NAMES = (
    "io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig "
    "fsmount fspick mount_setattr quotactl_fd"
).split()
_NEW = dict(zip(_NEW_NAMES, (*range(425, 434), 442, 443), strict=True))
_NAMES = (
    "mount umount2 pivot_root unshare setns swapon swapoff reboot init_module delete_module "
    "finit_module kexec_load kexec_file_load quotactl acct settimeofday clock_settime add_key "
    "request_key keyctl bpf perf_event_open userfaultfd name_to_handle_at open_by_handle_at "
    "lookup_dcookie kcmp syslog vhangup fanotify_init"
).split()
_X86_64 = (
    *(
        165,
        166,
        155,
        272,
        308,
        167,
        168,
        169,
        175,
        176,
        313,
        246,
        320,
        179,
        163,
        164,
        227,
        248,
        249,
        250,
        321,
        298,
    ),
    *(323, 303, 304, 212, 312, 103, 153, 300),
)
_AARCH64 = (
    *(
        40,
        39,
        41,
        97,
        268,
        224,
        225,
        142,
        105,
        106,
        273,
        104,
        294,
        60,
        89,
        170,
        112,
        217,
        218,
        219,
        280,
        241,
    ),
    *(282, 264, 265, 18, 272, 116, 58, 262),
)
_CALLED = {"clone3": 435}
NUMBERS = {
    "x86_64": {
        **dict(zip(_NAMES, _X86_64, strict=True)),
        "iopl": 172,
        "ioperm": 173,
        "clone": 56,
        "socket": 41,
    },
    "aarch64": {**dict(zip(_NAMES, _AARCH64, strict=True)), "clone": 220, "socket": 198},
}
UNKNOWN_MACHINE = "there is no filter for this kind of machine"
DENIED = (*_NAMES, *_NEW, "iopl", "ioperm")
_CHOWN = {"x86_64": (92, 93, 94, 260), "aarch64": (54, 55)}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # source: linux/audit.h
_PROFILED = {"x86_64": ("X86_64", "X86", "X32"), "aarch64": ("AARCH64", "ARM")}
_X32 = 0x40000000  # system calls of x86_64 programs with 32-bit pointers
_NAMESPACES = 0x7E020000  # every CLONE_NEW flag of clone(2)
_NEW_USER = 0x10000000
_THREAD = 0x00010000  # CLONE_THREAD of clone(2)
_FORK = {"x86_64": (57, 58)}  # fork and vfork; aarch64 has neither
_VSOCK = 40
_LOAD = 0x20
_EQUAL = 0x15
_LEAST = 0x35
_BITS = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_DENIED = _ERRNO | errno.EPERM
# offsets in struct seccomp_data, little-endian
_NUMBER = 0
_ARCH = 4
_FIRST_ARGUMENT = 16


def filter_program(machine: str = platform.machine()) -> bytes | None:
    """Return the filter as a BPF program; None for a machine whose system calls are not known here.

    Programs of the machine's 32-bit variants are killed: their system calls have other numbers.

    Args:
        machine: the machine's hardware name, as in ``uname -m``.
    """
    if machine not in NUMBERS:
        return None
    numbers = {**NUMBERS[machine], **_NEW, **_CALLED}
    lines = _known_calls(machine)
    for name in DENIED:
        if name in numbers:
            lines += _returns(numbers[name], _DENIED)
    # A filter cannot read the flags of clone3, which are in memory: libraries then use clone.
    lines += _returns(numbers["clone3"], _ERRNO | errno.ENOSYS)
    for name, test, value in (("clone", _BITS, _NAMESPACES), ("socket", _EQUAL, _VSOCK)):
        lines += [
            (_EQUAL, 0, 4, numbers[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, value),
        ]
        lines += [(_RETURN, 0, 0, _DENIED), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return _packed(lines)


def owners_program(machine: str = platform.machine()) -> bytes | None:
    """Return a filter with which a change of a file's owner succeeds and does nothing; None for a
    machine whose system calls are not known here.

    Args:
        machine: the machine's hardware name, as in ``uname -m``.
    """
    if machine not in _CHOWN:
        return None
    lines = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _ALLOW)]
    lines.append((_LOAD, 0, 0, _NUMBER))
    for number in _CHOWN[machine]:
        lines += _returns(number, _ERRNO)
    return _packed([*lines, (_RETURN, 0, 0, _ALLOW)])


def one_process_program(machine: str = platform.machine()) -> bytes | None:
    """Return a filter with which a process may start threads and no other process; None for a
    machine whose system calls are not known here.

    Args:
        machine: the machine's hardware name, as in ``uname -m``.
    """
    if machine not in NUMBERS:
        return None
    lines = _known_calls(machine)
    for number in _FORK.get(machine, ()):
        lines += _returns(number, _DENIED)
    lines += _returns(_CALLED["clone3"], _ERRNO | errno.ENOSYS)
    lines += [
        (_EQUAL, 0, 4, NUMBERS[machine]["clone"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_BITS, 1, 0, _THREAD),
        (_RETURN, 0, 0, _DENIED),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return _packed([*lines, (_RETURN, 0, 0, _ALLOW)])


def write_filter(directory: str) -> str:
    """Write the filter to a file in a directory; return its path, or "" if there is none for this
    machine.

    Raises:
        OSError: the file cannot be written.
    """
    program = filter_program()
    path = Path(directory, "seccomp")
    if program is None:
        return ""
    path.write_bytes(program)
    return str(path)


def _known_calls(machine: str) -> list[tuple[int, int, int, int]]:
    """Return lines that load a system call's number, and kill the machine's 32-bit programs."""
    lines = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    return lines


def _returns(number: int, action: int) -> Sequence[tuple[int, int, int, int]]:
    return ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, action))


def _packed(lines: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def filter_profile(machine: str = platform.machine()) -> str:
    """Return the filter as an OCI profile; it does not deny clone3, because Apptainer denies with
    EPERM only.

    Args:
        machine: the machine's hardware name, as in ``uname -m``.
    """
    user = {"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": _NEW_USER, "valueTwo": _NEW_USER}
    vsock = {"index": 0, "op": "SCMP_CMP_EQ", "value": _VSOCK}
    rules: list[dict[str, object]] = [
        {"names": list(DENIED)},
        {"names": ["clone"], "args": [user]},
        {"names": ["socket"], "args": [vsock]},
    ]
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [f"SCMP_ARCH_{name}" for name in _PROFILED.get(machine, ())],
        "syscalls": [{**rule, "action": "SCMP_ACT_ERRNO"} for rule in rules],
    }
    return json.dumps(profile)
