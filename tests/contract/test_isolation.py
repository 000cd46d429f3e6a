"""Hostile commands against the kernel: system calls that would widen what an agent can reach."""

from __future__ import annotations

import json

import pytest

import hyperruntime as hr

pytestmark = pytest.mark.engine

# Each way into a new user namespace runs in a child, because it would change the process that
# succeeds.
ATTEMPTS = r"""
import ctypes, json, os, platform, socket, struct, sys

libc, NEW_USER = ctypes.CDLL(None, use_errno=True), 0x10000000
call = libc.syscall
call.restype = ctypes.c_long
unshare, clone = {"x86_64": (272, 56), "aarch64": (97, 220)}[platform.machine()]
request = ctypes.create_string_buffer(struct.pack("=QQQQQ", NEW_USER, 0, 0, 0, 17) + bytes(48))
ways = {
    "unshare": lambda: call(unshare, NEW_USER),
    "clone": lambda: call(clone, NEW_USER | 17, 0, 0, 0, 0),
    "clone3": lambda: call(435, request, 88),
}


def succeeds(way):
    child = os.fork()
    if child == 0:
        pid = way()
        os._exit(0 if pid >= 0 else 1)
    return os.waitpid(child, 0)[1] == 0


done = [name for name, way in ways.items() if succeeds(way)]
try:
    socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK
    done.append("vsock")
except OSError:
    pass
print(json.dumps(done))
"""
# Podman's own profile allows user namespaces; Docker's and ours do not. Neither of theirs names
# AF_VSOCK everywhere.
ALLOWED = {"podman": {"unshare", "clone", "clone3", "vsock"}, "docker": {"vsock"}}


def test_a_command_makes_no_user_namespace_and_reaches_no_host_of_its_machine(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        done = json.loads(container.exec(["python3", "-"], input=ATTEMPTS.encode()).check().stdout)
    assert set(done) <= ALLOWED.get(runtime.name, set())


def test_threads_and_programs_of_every_kind_start_under_the_filter(
    runtime: hr.Runtime, base_image: str
) -> None:
    script = (
        "import subprocess, threading; t = threading.Thread(target=print, args=('thread',)); "
        "t.start(); t.join();print(subprocess.run(['echo', 'child'], capture_output=True, "
        "text=True).stdout, end='')"
    )
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        assert container.exec(["python3", "-c", script]).check().stdout == b"thread\nchild\n"
