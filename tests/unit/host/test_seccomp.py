"""The seccomp filter denies the intended system calls of each machine and allows all others."""

from __future__ import annotations

import ctypes
import errno
import json
import struct

import pytest

from hyperruntime.host.seccomp import (
    _AUDIT,
    _CHOWN,
    _NEW,
    DENIED,
    NUMBERS,
    filter_profile,
    filter_program,
    one_process_program,
    owners_program,
)

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x50000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS


def run(
    machine: str,
    number: int,
    first: int = 0,
    arch: int | None = None,
    program: bytes | None = None,
) -> int:
    """Return a filter's verdict on a system call: an interpreter of the few instructions that it
    has.
    """
    data = struct.pack("=iIQQ", number, _AUDIT[machine] if arch is None else arch, 0, first)
    program = program or filter_program(machine) or b""
    at = 0
    held = 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        at += yes if holds else no


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_denies_what_it_names_and_allows_the_rest(machine: str) -> None:
    numbers = {**NUMBERS[machine], **_NEW}
    assert {
        name for name in DENIED if name in numbers and run(machine, numbers[name]) != EPERM
    } == set()
    denied = {number for number in range(600) if run(machine, number) == EPERM}
    assert denied == {numbers[name] for name in DENIED if name in numbers}
    assert run(machine, 435) == ENOSYS
    clone, socket = numbers["clone"], numbers["socket"]
    assert (run(machine, clone, 0x11), run(machine, clone, 0x10000011)) == (ALLOW, EPERM)
    assert (run(machine, socket, 1), run(machine, socket, 40)) == (ALLOW, EPERM)
    assert run(machine, 0, arch=0x40000003) == KILL


@pytest.mark.parametrize("machine", _CHOWN)
def test_only_changes_of_owners_do_nothing_and_succeed(machine: str) -> None:
    program = owners_program(machine)
    ignored = {n for n in range(600) if run(machine, n, program=program) == ERRNO}
    assert ignored == set(_CHOWN[machine])
    assert {run(machine, n, program=program) for n in range(600)} == {ALLOW, ERRNO}
    assert run(machine, 92, arch=0x40000003, program=program) == ALLOW


def test_programs_with_other_call_numbers_are_killed_and_unknown_machines_have_no_filter() -> None:
    assert run("x86_64", 0x40000000 + 165) == KILL
    assert filter_program("riscv64") is None


@pytest.mark.parametrize(("machine", "token"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_the_numbers_are_those_of_libseccomp(machine: str, token: int) -> None:
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp is not installed")
    numbers = {**NUMBERS[machine], **_NEW, "clone3": 435}
    assert {name: resolve(token, name.encode()) for name in numbers} == numbers
    known = {resolve(token, name) for name in (b"chown", b"fchown", b"lchown", b"fchownat")}
    assert {number for number in known if number >= 0} == set(_CHOWN[machine])


def test_the_profile_names_the_same_calls() -> None:
    profile = json.loads(filter_profile("x86_64"))
    assert profile["syscalls"][0]["names"] == list(DENIED)
    assert profile["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ERRNO"}


@pytest.mark.parametrize("machine", NUMBERS)
def test_a_process_may_start_threads_and_no_process(machine: str) -> None:
    program = one_process_program(machine)
    clone = NUMBERS[machine]["clone"]
    assert run(machine, clone, first=0x00010000 | 0x100, program=program) == ALLOW
    assert run(machine, clone, first=0x4111, program=program) == EPERM
    assert run(machine, 435, program=program) == ENOSYS
    denied = {number for number in range(600) if run(machine, number, program=program) == EPERM}
    assert denied == {clone, *((57, 58) if machine == "x86_64" else ())}
    assert run(machine, clone, arch=1, program=program) == KILL
    assert one_process_program("sparc") is None
