"""A container with ``network="bridge"`` and this machine's loopback do not reach each other, also
if containers.conf allows it.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import hyperruntime as hr
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine

# Source: containers.conf(5), `pasta_options` and `network_cmd_options`
ALLOWS = '[network]\npasta_options = ["--map-gw"]\n[engine]\nnetwork_cmd_options = ["allow_host_loopback=true"]\n'
# Prints what the servers at these addresses and ports say.
CALL = """
import json, socket, struct, sys
places, port = json.loads(sys.argv[1])
with open("/proc/net/route") as file:
    for line in file:
        words = line.split()
        if words[1] == "00000000":
            places.append(socket.inet_ntoa(struct.pack("<L", int(words[2], 16))))
assert len(places) > 4, "there is no route out"
for place in places:
    try:
        with socket.create_connection((place, port), timeout=2) as connection:
            print(place, connection.recv(100).decode(errors="replace"))
    except OSError as error:
        print(place, error)
"""
LISTEN = """
import socket, sys
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as server:
    print("listens", flush=True)
    while True:
        server.accept()[0].sendall(sys.argv[2].encode())
"""
# of slirp4netns, and of Podman's pasta
KNOWN = ["127.0.0.1", "::1", "10.0.2.2", "169.254.1.1", "169.254.1.2"]


@pytest.fixture
def server() -> Iterator[tuple[int, str]]:
    """The port of a server on this machine's loopback, and the word that it says."""
    word = secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # it is closed
                while True:
                    with listening.accept()[0] as connection:
                        connection.sendall(word.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], word
        listening.shutdown(socket.SHUT_RDWR)


def heard(port: int) -> str:
    """Return what the server at a port of the loopback says; "" if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.settimeout(2)
            return connection.recv(100).decode()
    except OSError:
        return ""


@pytest.mark.parametrize("configuration", ["", ALLOWS], ids=["default", "permissive"])
def test_a_bridge_leads_neither_to_the_loopback_of_this_machine_nor_from_it(
    configuration: str,
    server: tuple[int, str],
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if configuration:
        (path := tmp_path / "containers.conf").write_text(configuration)
        monkeypatch.setenv("CONTAINERS_CONF", str(path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    port, word = server
    own = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET
    ]
    assert heard(port) == word
    with (
        hr.open_runtime("podman") as runtime,
        runtime.container(hr.ContainerSpec(image=base_image, network="bridge")) as container,
    ):
        called = ["python3", "-c", CALL, json.dumps([[*KNOWN, *own], port])]
        told = container.exec(called).check().stdout.decode()
        assert word not in told, told
        mine = secrets.token_hex(8)
        free = port + 1 if port < 65535 else port - 1
        with container.spawn(["python3", "-c", LISTEN, str(free), mine]) as listening:
            assert wait_until(lambda: b"listens" in listening.stdout, 30)
            assert mine not in heard(free)
