"""The proxy of a container: real sockets and real TLS, and names that the test resolves."""

from __future__ import annotations

import asyncio
import errno
import http.client
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.concurrency.bridge import Bridge
from hyperruntime.egress.proxy import Connection, Proxy
from hyperruntime.host.process import wait_until
from hyperruntime.ports.listeners import listen_in
from tests.doubles.packages import make_certificates
from tests.doubles.site_proxy import run_site_proxy

HOST = "index.test"


class Handler(http.server.BaseHTTPRequestHandler):
    """Says what arrived; ``/close`` ends its body by closing, ``/moved`` redirects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = int(self.headers.get("Content-Length", "0"))
        names = ",".join(sorted(name.lower() for name in self.headers))
        sent = len(self.rfile.read(size)) if size else 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                sent += len(self.rfile.read(length))
                self.rfile.readline()
        body = f"{self.command} {self.path} {self.headers['Host']} {sent} {names}".encode()
        self.send_response(200)
        if self.path == "/close":
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        pass  # clients of these tests end in the middle


class Service:
    """A server of HTTP, and one of TLS that answers with what arrived."""

    def __init__(self, folder: Path) -> None:
        self.authority = make_certificates(folder, HOST)
        self.plain = Server(("127.0.0.1", 0), Handler)
        self.tls = Server(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.tls.socket = context.wrap_socket(
            self.tls.socket, server_side=True, do_handshake_on_connect=False
        )
        for server in (self.plain, self.tls):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.plain.server_address[1])

    @property
    def tls_port(self) -> int:
        return int(self.tls.server_address[1])

    def close(self) -> None:
        for server in (self.plain, self.tls):
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("service"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    loop = Bridge("test-egress", RuntimeError)
    yield loop
    loop.close()


@attrs.frozen
class Answer:
    """What came back to a request."""

    status: int
    reason: str
    body: bytes
    location: str | None


class Client:
    """A proxy in use, and what it noted."""

    def __init__(self, bridge: Bridge, folder: Path, egress: hr.Egress) -> None:
        self._bridge = bridge
        self._path = folder / "egress"
        self.notes: list[Connection] = []
        listener = listen_in(str(folder), "egress")

        async def serve() -> Proxy:
            return Proxy(listener, egress, "box", self.notes.append)

        self.proxy = bridge.run(serve())

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(60)
        for _ in range(6000):
            try:
                made.connect(str(self._path))
            except BlockingIOError:  # its queue is full
                time.sleep(0.01)
            else:
                return made
        raise AssertionError("the proxy accepts no connection")

    def say(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes back until the proxy closes."""
        with self.connect() as made:
            made.sendall(data)
            found = b""
            with suppress(ConnectionResetError):
                while piece := made.recv(65536):
                    found += piece
        return found

    def get(self, url: str) -> Answer:
        with closing(http.client.HTTPConnection("proxy")) as connection:
            connection.sock = self.connect()
            connection.request("GET", url)
            answer = connection.getresponse()
            return Answer(answer.status, answer.reason, answer.read(), answer.headers["Location"])

    def tunnel(self, target: str) -> socket.socket:
        made = self.connect()
        made.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = made.recv(1)
            assert piece, head
            head += piece
        assert head.startswith(b"HTTP/1.1 200"), head
        return made

    def set(self, egress: hr.Egress) -> None:
        async def change() -> None:
            self.proxy.set(egress)

        self._bridge.run(change())

    def last(self, count: int = 1) -> Connection:
        assert wait_until(lambda: len(self.notes) >= count, 60)
        return self.notes[count - 1]

    def close(self) -> None:
        self._bridge.run(self.proxy.close(), 60)


Open = Callable[[hr.Egress], Client]


@pytest.fixture
def opened(bridge: Bridge, tmp_path: Path) -> Iterator[Open]:
    made: list[Client] = []

    def open_client(egress: hr.Egress) -> Client:
        made.append(Client(bridge, tmp_path, egress))
        return made[-1]

    yield open_client
    for client in made:
        client.close()


def names(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[list[str]]]) -> None:
    """Resolve names to addresses, each time to the next answer; others do not exist."""
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *_: object, **options: object) -> object:
        if host not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answer = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [found for one in answer for found in real(one, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def local(service: Service) -> hr.Egress:
    ports = (service.port, service.tls_port)
    return hr.Egress(allow=tuple(f"{HOST}:{port}" for port in ports), hosts={HOST: "127.0.0.1"})


def test_plain_requests_go_on_one_after_another(service: Service, opened: Open) -> None:
    client = opened(local(service))
    connection = http.client.HTTPConnection("proxy")
    connection.sock = client.connect()
    for path in ("/a?b=1", "/c"):
        connection.request(
            "GET",
            f"http://{HOST}:{service.port}{path}",
            headers={
                "Host": "other.test",
                "Proxy-Authorization": "x",
                "Connection": "x-mine",
                "X-Mine": "1",
            },
        )
        answer = connection.getresponse().read().decode()
        assert answer == f"GET {path} {HOST}:{service.port} 0 accept-encoding,connection,host"
    connection.close()
    note = client.last(2)
    assert (note.host, note.port, note.address, note.refused) == (
        HOST,
        service.port,
        "127.0.0.1",
        "",
    )


def test_bodies_of_each_form_arrive(service: Service, opened: Open) -> None:
    client = opened(local(service))
    connection = http.client.HTTPConnection("proxy")
    connection.sock = client.connect()
    url = f"http://{HOST}:{service.port}"
    connection.request("POST", f"{url}/one", body=b"x" * 300_000)
    assert connection.getresponse().read().split()[3] == b"300000"
    pieces = iter([b"x" * 100_000] * 3)
    connection.request(
        "POST",
        f"{url}/two",
        body=pieces,
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert connection.getresponse().read().split()[3] == b"300000"
    connection.close()
    assert client.get(f"{url}/close").body.startswith(b"GET /close")
    assert client.last().sent_bytes > 300_000


def test_a_tunnel_carries_tls_to_the_named_server(service: Service, opened: Open) -> None:
    client = opened(local(service))
    context = ssl.create_default_context(cafile=str(service.authority))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tunnel = client.tunnel(f"{HOST}:{service.tls_port}")
    with context.wrap_socket(tunnel, server_hostname=HOST) as tls:
        tls.sendall(b"GET /inside HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"GET /inside x" in b"".join(iter(lambda: tls.recv(65536), b""))
    note = client.last()
    assert note.refused == ""
    assert note.sent_bytes > 300
    assert note.received_bytes > 1000


def hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        (hello("other.test"), "it names 'other.test'"),
        (hello(f"a.{HOST}"), f"it names 'a.{HOST}'"),
        (hello(None), "it names no server"),
        (b"SSH-2.0-OpenSSH_9\r\n", "it does not speak TLS"),
        (b"GET / HTTP/1.1\r\nHost: index.test\r\n\r\n", "it does not speak TLS"),
        (b"\x16\x03\x01\xff\xff" + b"\x01" * 70_000, "its first message is too long"),
        (b"\x16\x03\x01", "it closed before it named a server"),
        (b"", "it closed before it named a server"),
    ],
    ids=["other", "below", "none", "ssh", "http", "long", "short", "nothing"],
)
def test_a_tunnel_to_another_server_is_refused(
    first: bytes, refused: str, service: Service, opened: Open
) -> None:
    client = opened(local(service))
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(first)
        tunnel.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            answer = b"".join(iter(lambda: tunnel.recv(100), b""))
    # an alert of TLS, "unrecognized_name", where it spoke TLS
    assert answer == (
        b"\x15\x03\x03\x00\x02\x02\x70" if "names" in refused and "before" not in refused else b""
    )
    note = client.last()
    assert refused in note.refused
    assert note.sent_bytes == 0


@pytest.mark.parametrize("size", [1, 50])
def test_a_client_hello_may_come_in_pieces(size: int, service: Service, opened: Open) -> None:
    client = opened(local(service))
    whole = hello(HOST)
    body = whole[5:]
    records = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (body[at : at + 50] for at in range(0, len(body), 50))
    )
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        for at in range(0, len(records), size):
            tunnel.send(records[at : at + size])
        assert tunnel.recv(1) == b"\x16"  # the server's hello


SSRF = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "0.0.0.0",
    "localhost",
    "LOCALHOST.",
    "169.254.169.254",
    "127.0.0.1.",
    "①②⑦.0.0.1",
    "index.test@127.0.0.1",
    "127.0.0.1#index.test",
    "127.0.0.1%00.index.test",
]


@pytest.mark.parametrize("host", SSRF)
def test_this_machine_is_reached_by_no_spelling(host: str, service: Service, opened: Open) -> None:
    every = hr.Egress(allow=(f"*:{service.port}", f"*:{service.tls_port}"))
    client = opened(every)
    answer = client.say(f"GET http://{host}:{service.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"400", b"403", b"502"), answer
    answer = client.say(f"CONNECT {host}:{service.tls_port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"400", b"403", b"502"), answer
    assert all(note.address == "" for note in client.notes)


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["93.184.216.34", "127.0.0.1"]],
)
def test_a_name_that_leads_to_a_private_address_is_refused(
    addresses: list[str], service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, {"rebind.test": [addresses]})
    client = opened(hr.Egress(allow=(f"rebind.test:{service.port}",)))
    answer = client.get(f"http://rebind.test:{service.port}/")
    assert answer.status == 403
    assert b"rebind.test leads to" in answer.body


def test_an_answer_that_changes_after_the_check_is_not_used(
    service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first answer is named in the list, the second is not: it is asked once
    names(monkeypatch, {"rebind.test": [["127.0.0.1"], ["127.0.0.2"]]})
    port = service.port
    client = opened(hr.Egress(allow=(f"rebind.test:{port}", f"127.0.0.1:{port}")))
    assert client.get(f"http://rebind.test:{port}/").status == 200
    assert client.last().address == "127.0.0.1"
    assert client.get(f"http://rebind.test:{port}/").status == 403


def test_the_addresses_of_this_machine_are_refused(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a public address that is this machine's: bind succeeds for these only
    names(monkeypatch, {"own.test": [["93.184.216.34"]]})
    monkeypatch.setattr("hyperruntime.egress.servers._is_own", lambda address: True)
    client = opened(hr.Egress(allow=("own.test",)))
    assert b"which is this machine's" in client.get("http://own.test/").body


def test_a_redirect_is_checked_like_every_request(service: Service, opened: Open) -> None:
    client = opened(local(service))
    answer = client.get(f"http://{HOST}:{service.port}/moved")
    assert answer.location
    assert client.get(answer.location).status == 403


def test_a_refusal_says_why_where_clients_show_it(opened: Open) -> None:
    client = opened(hr.Egress(allow=("pypi.org",)))
    answer = client.get("http://evil.test/")
    assert answer.reason == "hyperruntime: evil.test is not in the list"
    assert client.last().refused == "evil.test is not in the list"
    head = client.say(b"CONNECT pypi.org:22 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"pypi.org is in the list with port 80 and 443, not 22" in head


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET http://index.test/ HTTP/1.1\r\n\r\n",
        b"POST http://index.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://index.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 4\r\n\r\nabcd",
        b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT index.test HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET ftp://index.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://index.test:99999/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"A" * 200_000,
    ],
)
def test_what_is_no_request_is_refused(data: bytes, opened: Open) -> None:
    client = opened(hr.Egress(allow=("index.test",)))
    assert client.say(data).split(b" ")[1:2] in ([b"400"], [b"403"], [b"501"])


def test_limits_end_connections_and_say_so(service: Service, opened: Open) -> None:
    egress = local(service)
    client = opened(
        hr.Egress(allow=egress.allow, hosts=egress.hosts, limit_connections=2, limit_bytes=1000)
    )
    url = f"http://{HOST}:{service.port}/"
    assert client.get(url).status == 200
    client.say(
        f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n".encode() + b"x" * 2000
    )
    assert "its 1000 bytes are used up" in client.last(2).refused
    assert b"used up" in client.get(url).body
    client.set(hr.Egress(allow=egress.allow, hosts=egress.hosts, limit_s=0.001))

    def is_over() -> bool:
        with suppress(http.client.RemoteDisconnected):  # the time ended it in the middle
            return b"are over" in client.get(url).body
        return False

    assert wait_until(is_over, 60)


def test_heads_count_too(service: Service, opened: Open) -> None:
    egress = local(service)
    client = opened(hr.Egress(allow=egress.allow, hosts=egress.hosts, limit_bytes=20_000))
    url = f"http://{HOST}:{service.port}/"
    statuses = [client.get(f"{url}?{'x' * 9000}").status for _ in range(4)]
    assert statuses[0] == 200
    assert statuses[-1] == 403


def test_clients_that_have_gone_hold_no_place(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.egress.proxy._ENDED_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as silent:
        port = silent.getsockname()[1]
        client = opened(hr.Egress(allow=(f"{HOST}:{port}",), hosts={HOST: "127.0.0.1"}))
        ask = f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        for _ in range(300):  # more than it has places
            with client.connect() as made:
                made.sendall(ask)
        with client.tunnel(f"{HOST}:{port}") as tunnel:
            tunnel.sendall(hello(HOST))
        assert wait_until(lambda: len(client.notes) == 301, 100)
        assert b"403" in client.say(b"GET http://other.test/ HTTP/1.1\r\nHost: x\r\n\r\n")


def test_a_name_that_is_not_ascii_is_refused_without_noise(
    service: Service, opened: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    client = opened(local(service))
    odd = hello(HOST).replace(HOST.encode(), b"\xff" + HOST.encode()[1:])
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(odd)
        assert tunnel.recv(1) == b""
    assert "not ASCII" in client.last().refused
    assert capfd.readouterr().err == ""


def test_a_host_that_the_list_leads_elsewhere_is_cut(service: Service, opened: Open) -> None:
    client = opened(local(service))
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(hello(HOST))
        assert tunnel.recv(1)
        client.set(hr.Egress(allow=local(service).allow))  # the name leads nowhere known now
        with suppress(ConnectionResetError):
            while tunnel.recv(65536):
                pass
    assert client.last().refused == "the list has changed"


def test_a_machine_without_ipv6_reaches_names_that_have_both(
    service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = service.port
    names(monkeypatch, {"both.test": [["::1", "127.0.0.1"]]})
    real = socket.socket

    class Socket(real):  # type: ignore[misc, valid-type]
        def __init__(self, family: int = -1, *args: object, **options: object) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *args, **options)

    monkeypatch.setattr("hyperruntime.egress.servers.socket.socket", Socket)
    client = opened(hr.Egress(allow=(f"both.test:{port}", f"127.0.0.1:{port}", f"[::1]:{port}")))
    assert client.get(f"http://both.test:{port}/").status == 200


def test_the_proxy_of_the_site_is_not_shown_when_it_fails(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, {"127.0.0.1": [["127.0.0.1"]]})
    client = opened(hr.Egress(allow=("pypi.org",)))
    for proxy in ("http://user:secret@127.0.0.1:9", "http://user:se#cret@127.0.0.1:9"):
        monkeypatch.setenv("http_proxy", proxy)
        answer = client.get("http://pypi.org/")
        assert answer.status == 502
        assert "127.0.0.1" not in answer.reason
        assert "cret" not in answer.reason


def test_a_new_list_ends_what_it_does_not_have(service: Service, opened: Open) -> None:
    client = opened(local(service))
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(hello(HOST))
        assert tunnel.recv(1)
        client.set(hr.Egress(allow=("other.test",)))
        with suppress(ConnectionResetError):
            while tunnel.recv(65536):
                pass
    assert client.last().refused == "the list has changed"


def test_the_time_ends_an_open_connection(service: Service, opened: Open) -> None:
    egress = local(service)
    client = opened(egress)
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(hello(HOST))
        assert tunnel.recv(1)
        client.set(hr.Egress(allow=egress.allow, hosts=egress.hosts, limit_s=0.1))
        with suppress(ConnectionResetError):
            while tunnel.recv(65536):
                pass
    assert client.last().refused == "its 0.1 s are over"


def test_a_silent_server_is_not_found(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {})
    client = opened(hr.Egress(allow=("nowhere.test",)))
    answer = client.get("http://nowhere.test/")
    assert answer.status == 502
    assert "nowhere.test cannot be resolved: Name or service not known" in answer.reason
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    client.set(hr.Egress(allow=(f"gone.test:{port}",), hosts={"gone.test": "127.0.0.1"}))
    assert "cannot be reached" in client.get(f"http://gone.test:{port}/").reason


def test_the_proxy_of_the_site_is_asked_and_not_shown(
    service: Service, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, {"127.0.0.1": [["127.0.0.1"]]})  # this machine knows no other name
    known = {f"{HOST}:{service.port}": service.port, f"{HOST}:{service.tls_port}": service.tls_port}
    with run_site_proxy(known) as site:
        monkeypatch.setenv("http_proxy", site.url)
        monkeypatch.setenv("https_proxy", site.url)
        client = opened(hr.Egress(allow=local(service).allow))
        answer = client.get(f"http://{HOST}:{service.port}/way")
        assert answer.body.startswith(b"GET /way")
        with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
            tunnel.sendall(hello(HOST))
            assert tunnel.recv(1) == b"\x16"
        assert site.asked == list(known)
        refused = client.say(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 403")
        assert site.asked == list(known)


def test_two_hundred_connections_at_once(service: Service, opened: Open) -> None:
    client = opened(local(service))
    tunnels = [client.tunnel(f"{HOST}:{service.tls_port}") for _ in range(200)]
    first = hello(HOST)
    try:
        for tunnel in tunnels:
            tunnel.sendall(first)
        assert all(tunnel.recv(1) == b"\x16" for tunnel in tunnels)
        # all are in use by clients that do nothing more, and another one is served
        assert client.get(f"http://{HOST}:{service.port}/").status == 200
    finally:
        for tunnel in tunnels:
            tunnel.close()


def test_the_end_leaves_no_task(service: Service, opened: Open, bridge: Bridge) -> None:
    client = opened(local(service))
    with client.tunnel(f"{HOST}:{service.tls_port}") as tunnel:
        tunnel.sendall(hello(HOST))
        assert tunnel.recv(1)
        client.close()

        async def left() -> int:
            return len(asyncio.all_tasks()) - 1

        assert bridge.run(left()) == 0
    assert client.last().refused == "the container has ended"
