"""Checks of a network with a list: what is reached, and what never is."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hyperruntime.container import Container
from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.network.egress import Egress
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, shell
from hyperruntime.testing.conformance.isolation_checks import interfaces_of

_HOST = "index.test"
# Sends each list of pieces to the proxy, and prints what came back to each as JSON: the first line
# of the answer, and what followed it. A piece may be ["hello", NAME]: the first message of a TLS
# client.
_CLIENT = """
import json, os, socket, ssl, sys
def hello(name):
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return out.read()
proxy = os.environ["https_proxy"].rpartition(":")[2]
answers = []
for pieces in json.load(sys.stdin):
    with socket.create_connection(("127.0.0.1", int(proxy)), timeout=60) as client:
        found = b""
        try:
            for piece in pieces:
                if isinstance(piece, list):
                    data = hello(piece[1])
                    while not found.endswith(b"\\r\\n\\r\\n"):
                        more = client.recv(1)
                        if not more:
                            raise ConnectionResetError
                        found += more
                    for at in range(0, len(data), 100):
                        client.sendall(data[at : at + 100])
                else:
                    client.sendall(piece.encode())
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(65536):
                found += more
        except OSError:
            pass
        answers.append(found.decode("latin-1").partition("\\r\\n")[::2])
print(json.dumps(answers))
"""
# Source: the forms of inet_aton(3), RFC 4291 and RFC 3986 that programs read as this machine.
_SPELLINGS = (
    "127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 [::1] [::ffff:127.0.0.1] [64:ff9b::7f00:1] "
    "0.0.0.0 localhost LOCALHOST. 169.254.169.254 127.0.0.1. index.test@127.0.0.1"
).split()


class _Server:
    """A server of this machine that answers the first bytes of each client with a text."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                with client, suppress(OSError):
                    client.settimeout(60)
                    first = client.recv(65536)
                    body = b"plain" if first.startswith(b"GET /") else b"other"
                    length = len(body)
                    head = (
                        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                        % length
                    )
                    client.sendall(b"tls" if first[:1] == b"\x16" else head + body)


@contextmanager
def _serving() -> Iterator[_Server]:
    server = _Server()
    try:
        yield server
    finally:
        server.socket.shutdown(socket.SHUT_RDWR)
        server.socket.close()


def _ask(container: Container, *asked: list[Any]) -> list[tuple[str, str]]:
    """Return the first line and the rest of each answer of the proxy."""
    done = container.exec(["python3", "-c", _CLIENT], input=json.dumps(asked).encode())
    return [tuple(answer) for answer in json.loads(done.check().stdout)]


def _connect(target: str) -> str:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"


def _get(url: str) -> str:
    return f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def _has_python(context: Context, egress: Egress) -> bool:
    """Return whether the image has Python; check that a list is refused by name if not."""
    if shell(context.container, "command -v python3").exit_code == 0:
        return True
    with expect_error(UnsupportedOptionError, "a list in an image without Python", "python3"):
        context.start(network=egress)
    return False


@check("egress.list")
def a_list(context: Context) -> None:
    """With a list, a container reaches its servers by name and port, and no others."""
    with _serving() as server:
        place = f"{_HOST}:{server.port}"
        egress = Egress(allow=(place, f"*.{place}"), hosts={_HOST: "127.0.0.1"})
        if not _has_python(context, egress):
            return
        with context.start(network=egress) as container:
            reached, below, other, port, plain = _ask(
                container,
                [_get(f"http://{place}/")],
                [_get(f"http://below.{place}/")],
                [_get(f"http://other.test:{server.port}/")],
                [_get(f"http://{_HOST}/")],
                ["GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
            )
            expect(reached[1].endswith("plain"), f"the server of the list answered {reached}")
            expect("cannot be resolved" in below[0], f"a name of the wildcard: {below[0]}")
            expect("is not in the list" in other[0], f"another name: {other[0]}")
            expect("not 80" in port[0], f"another port: {port[0]}")
            expect(" 400 " in plain[0], f"a request without a server: {plain[0]}")
            expect_equal(interfaces_of(container), {"lo"}, "the interfaces inside")
            noted = [(one.host, bool(one.refused)) for one in container.connections]
            expect((_HOST, False) in noted, f"the connections noted are {noted}")


@check("egress.tls")
def tls(context: Context) -> None:
    """A tunnel carries TLS to the server that it names, and nothing else."""
    with _serving() as server:
        place = f"{_HOST}:{server.port}"
        egress = Egress(allow=(place,), hosts={_HOST: "127.0.0.1"})
        if not _has_python(context, egress):
            return
        with context.start(network=egress) as container:
            same, other, none, ssh = _ask(
                container,
                [_connect(place), ["hello", _HOST]],
                [_connect(place), ["hello", "other.test"]],
                [_connect(place), ["hello", None]],
                [_connect(place), "SSH-2.0-x\r\n"],
            )
            expect(same[1].endswith("tls"), f"the server that the client names: {same}")
            for answer, what in ((other, "another server"), (none, "no server"), (ssh, "SSH")):
                expect(not answer[1].endswith("tls"), f"a client that names {what}: {answer}")
            whys = " ".join(one.refused for one in container.connections)
            expect("names 'other.test'" in whys, f"the reasons noted are {whys!r}")


@check("egress.private")
def private(context: Context) -> None:
    """This machine and private addresses are reached by no spelling, unless the list names them."""
    with _serving() as server:
        port = server.port
        egress = Egress(allow=(f"*:{port}",))
        if not _has_python(context, egress):
            return
        with context.start(network=egress) as container:
            asked: list[list[Any]] = [[_get(f"http://{one}:{port}/")] for one in _SPELLINGS]
            asked += [[_connect(f"{one}:{port}"), ["hello", "localhost"]] for one in _SPELLINGS]
            for question, answer in zip(asked, _ask(container, *asked), strict=True):
                refused = answer[0].split(" ")[1:2] != ["200"]
                expect(refused, f"{question[0].split()[1]} was reached: {answer}")
            container.egress = Egress(allow=(f"127.0.0.1:{port}",))
            ((_, found),) = _ask(container, [_get(f"http://127.0.0.1:{port}/")])
            expect(found.endswith("plain"), f"an address that the list names: {found!r}")


@check("egress.change")
def change(context: Context) -> None:
    """A list may change while the container runs, and no other network has one."""
    with _serving() as server:
        url = f"http://{_HOST}:{server.port}/"
        egress = Egress(allow=(f"{_HOST}:{server.port}",), hosts={_HOST: "127.0.0.1"})
        if not _has_python(context, egress):
            return
        with context.start() as container:
            proxy = 'printf %s "$http_proxy"'
            expect_equal(shell(container, proxy).stdout, b"", "the proxy without a list")
            for _ in range(2):
                container.egress = egress
                ((_, found),) = _ask(container, [_get(url)])
                expect(found.endswith("plain"), f"after a list was set: {found!r}")
                container.egress = Egress(allow=("other.test",))
                ((line, _),) = _ask(container, [_get(url)])
                expect("is not in the list" in line, f"after another list was set: {line}")
            container.egress = None
            expect_equal(shell(container, proxy).stdout, b"", "the proxy after the list")
    if "host" in context.info.networks:
        with (
            context.start(network="host") as container,
            expect_error(SpecError, "a list beside the host's network", "no other network"),
        ):
            container.egress = egress


@check("egress.rollback", needs="snapshot")
def rollback(context: Context) -> None:
    """After a snapshot and a rollback, a container reaches the servers of its list again."""
    with _serving() as server:
        url = f"http://{_HOST}:{server.port}/"
        egress = Egress(allow=(f"{_HOST}:{server.port}",), hosts={_HOST: "127.0.0.1"})
        with context.start() as container:
            files = container.snapshot()
            if not _has_python(context, egress):
                return
            container.egress = egress
            ((_, found),) = _ask(container, [_get(url)])
            expect(found.endswith("plain"), f"before the rollback: {found!r}")
            container.snapshot()
            container.rollback(files)
            ((_, found),) = _ask(container, [_get(url)])
            expect(found.endswith("plain"), f"after the rollback: {found!r}")
