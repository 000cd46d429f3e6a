"""Ports of containers without a network, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ContainerStateError,
    HyperRuntimeError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.host.process import wait_until
from tests.contract.pools import make_pool

pytestmark = pytest.mark.engine

PORT = 8321
KIND_SERVER = """
import socket, threading
def serve(client):
    want = b""
    while not want.endswith(b"\\n"):
        want += client.recv(1)
    left, block = int(want), bytes(range(256)) * 256
    while left:
        left -= client.send(block[:left])
    client.shutdown(socket.SHUT_WR)
    count = 0
    while data := client.recv(65536):
        count += len(data)
    print(count, flush=True)
listener = socket.create_server(("127.0.0.1", 8321), backlog=512)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
KILL_FORWARDER = r"""
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"\0to\0" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), 9)
"""


def serve(container: hr.Container, args: list[str], port: int, address: tuple[str, int]) -> None:
    """Start a server in a container and wait until its port is open."""

    def hold() -> None:
        with suppress(HyperRuntimeError):
            container.exec(args)

    threading.Thread(target=hold, daemon=True).start()

    def is_open() -> bool:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        return container.exec(["python3", "-c", probe]).exit_code == 0

    assert wait_until(is_open, 60)


@pytest.fixture(scope="module")
def address(container: hr.Container) -> tuple[str, int]:
    found = container.forward(PORT)
    serve(container, ["python3", "-c", KIND_SERVER], PORT, found)
    return found


def fetch(address: tuple[str, int], size: int) -> bytes:
    """Ask the server for a number of bytes, and read them to the end that it sends."""
    with socket.create_connection(address, timeout=120) as client:
        client.sendall(b"%d\n" % size)
        return client.makefile("rb").read()


def test_each_direction_can_be_closed_alone(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(b"3\n")
        assert client.makefile("rb").read() == b"\x00\x01\x02"  # the server has ended its direction
        client.sendall(b"still open")


@pytest.mark.slow
def test_more_clients_than_the_forwarder_has_connections_are_all_served(
    address: tuple[str, int],
) -> None:
    with ThreadPoolExecutor(300) as threads:
        answers = list(threads.map(lambda number: len(fetch(address, number)), range(900)))
    assert answers == list(range(900))


def test_only_the_loopback_is_listened_on(address: tuple[str, int]) -> None:
    assert address[0] == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        other = str(probe.getsockname()[0])
    assert not other.startswith("127."), "this machine has only loopback addresses"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, address[1]), timeout=60)


def test_another_program_in_the_container_cannot_take_the_place_of_the_forwarder(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        address = container.forward(PORT)
        imposter = (
            "import glob, socket\n"
            "path, = glob.glob('/run/hyperruntime/forward-*')\n"
            "host = socket.socket(socket.AF_UNIX)\n"
            "host.connect(path)\n"
            "host.sendall(b'x' * 32)\n"
            "print(host.recv(1))"
        )
        assert container.exec(["python3", "-c", imposter], timeout_s=60).stdout == b"b''\n"
        with socket.create_connection(address, timeout=60) as client:
            assert client.recv(10) == b""


def test_a_forwarder_that_was_killed_is_started_again_by_the_next_call(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        address = container.forward(PORT)
        serve(container, ["python3", "-c", KIND_SERVER], PORT, address)
        container.exec(["python3", "-c", KILL_FORWARDER])
        assert wait_until(lambda: is_refused(address), 60)
        assert fetch(container.forward(PORT), 5) == bytes(range(5))


def is_refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_port_is_closed_with_the_container(runtime: hr.Runtime, base_image: str) -> None:
    container = runtime.container(hr.ContainerSpec(image=base_image))
    address = container.forward(PORT)
    held = socket.create_connection(address, timeout=60)
    container.close()
    assert is_refused(address)
    with held, suppress(ConnectionResetError):
        assert held.recv(1) == b""
    with pytest.raises(ContainerStateError):
        container.forward(PORT)


def test_an_image_without_python_is_refused_by_name(
    runtime: hr.Runtime, images: dict[str, str]
) -> None:
    if images["busybox"] == images["dash"]:  # the engine has only one image, which has Python
        return
    with (
        runtime.container(hr.ContainerSpec(image=images["busybox"])) as container,
        pytest.raises(UnsupportedOptionError, match="forward: the image has no python3"),
    ):
        container.forward(PORT)


@pytest.mark.parametrize(
    ("port", "host"),
    [(0, "127.0.0.1"), (65536, "127.0.0.1"), (80, "203.0.113.9"), (80, "no name"), (80, "")],
)
def test_invalid_addresses_are_refused(container: hr.Container, port: int, host: str) -> None:
    with pytest.raises(SpecError):
        container.forward(port, host=host)


async def test_a_lease_forwards_until_it_ends(runtime: hr.Runtime, base_image: str) -> None:
    async with make_pool(runtime, base_image) as pool:
        async with pool.lease() as lease:
            address = await lease.forward(PORT)
            assert not is_refused(address)
        await pool.settle()
        while not is_refused(address):
            await asyncio.sleep(0.02)
