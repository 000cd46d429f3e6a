"""Checks of single files and of ports: exact bytes, typed errors, and clients of a container
without a network.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hyperruntime.container import Container
from hyperruntime.errors import HyperRuntimeError, TransferTimeoutError, UnsupportedOptionError
from hyperruntime.run_as import RunAs
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_error
from hyperruntime.testing.conformance.context import Context, shell
from hyperruntime.transfer.file_errors import FileError, FileTooLargeError

INSIDE = "/tmp/conformance-files"  # noqa: S108 - inside a container
_USER = RunAs(uid=20_021)
_PORT = 8137
_LARGE_BYTES = 8 * 1024**2 + 3
_MIB = 1024**2
# Sends back the count and the digest of what it receives, when the client has sent all; several
# clients at once.
_SERVER = """
import hashlib, socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        digest, count = hashlib.sha256(), 0
        while data := self.request.recv(65536):
            digest.update(data)
            count += len(data)
        self.request.sendall(b"%d %s" % (count, digest.hexdigest().encode()))
class Server(socketserver.ThreadingTCPServer):
    request_queue_size, daemon_threads = 128, True
Server(("127.0.0.1", 8137), Handler).serve_forever()
"""


@check("files.exact")
def exact(context: Context) -> None:
    """A file that is written is read with exactly its bytes, at any size, and many files in one
    call.
    """
    container = context.container
    for size in (0, 1, 65536, _MIB, _LARGE_BYTES):
        data = os.urandom(size)
        container.write_file(f"{INSIDE}/deep/er/file", data)
        expect(
            container.read_file(f"{INSIDE}/deep/er/file") == data, f"{size} bytes came back changed"
        )
        expect_equal(container.stat(f"{INSIDE}/deep/er/file").size_bytes, size, "the size")
    files = {f"{INSIDE}/many/{number}": os.urandom(number * 100) for number in range(40)}
    container.write_files(files)
    expect(container.read_files(files) == files, "many files came back changed")
    expect_equal(len(container.listdir(f"{INSIDE}/many")), 40, "names in the directory")


@check("files.names")
def names(context: Context) -> None:
    """Every name that the container's file system allows can be written, read, and listed.

    Most allow 255 bytes, fuse-overlayfs 251.
    """
    most = int(shell(context.container, "stat -f -c %l /tmp").stdout)
    odd = ("-n", "new\nline\n", "\udcff\udcfe", "a b'\"`$(x)\\n", "*", " ", "\\", "é" * (most // 2))
    files = {f"{INSIDE}/names/{name}": os.fsencode(name) for name in odd}
    context.container.write_files(files)
    expect_equal(context.container.read_files(files), files, "files of odd names")
    for path, data in files.items():
        expect_equal(context.container.read_file(path), data, f"the file {path!r}")
    expect_equal(set(context.container.listdir(f"{INSIDE}/names")), set(odd), "the listed names")
    longest = INSIDE + "/" + "d" * 199 + ("/" + "d" * 199) * 19
    longest += "/" + "f" * (4095 - len(longest) - 1)
    context.container.write_file(longest, b"far down")
    expect_equal(
        context.container.read_file(longest), b"far down", "a file at a path of 4,095 bytes"
    )
    with expect_error(FileError, "a path of 4,096 bytes", "too long"):
        context.container.read_file(longest + "f")


@check("files.errors")
def errors(context: Context) -> None:
    """Each reason for which a file cannot be used is its own error, which is also the built-in
    one.
    """
    container = context.container
    container.write_file(f"{INSIDE}/errors/file", b"12345")
    here = f"{INSIDE}/errors"
    nothing = f"{INSIDE}/errors/nothing"
    for wanted, path in (
        (FileNotFoundError, nothing),
        (IsADirectoryError, here),
        (NotADirectoryError, f"{here}/file/x"),
    ):
        with expect_error(wanted, f"reading {path}", path):
            container.read_file(path)
    with expect_error(FileTooLargeError, "reading 5 bytes with a limit of 4", "limit_bytes"):
        container.read_file(f"{here}/file", limit_bytes=4)
    with expect_error(IsADirectoryError, "writing to a directory", here):
        container.write_file(here, b"")
    with expect_error(NotADirectoryError, "writing below a file", f"{here}/file/x"):
        container.write_file(f"{here}/file/x", b"")
    with expect_error(FileNotFoundError, "writing without parents", nothing):
        container.write_file(f"{nothing}/x", b"", parents=False)
    with expect_error(NotADirectoryError, "listing a file", here):
        container.listdir(f"{here}/file")
    for what in (container.stat, container.listdir):
        with expect_error(FileNotFoundError, "a missing path", nothing):
            what(nothing)
    found: list[FileError] = []
    got = container.read_files([f"{here}/file", nothing], on_error=found.append)
    expect_equal(
        (got, [error.path for error in found]),
        ({f"{here}/file": b"12345"}, [nothing]),
        "reading many files",
    )


@check("files.special")
def special(context: Context) -> None:
    """Files of /proc and devices are read; links are followed; a pipe without a partner ends at the
    deadline.
    """
    with context.start() as container:
        shell(
            container,
            f"mkdir {INSIDE} && cd {INSIDE} && mkfifo fifo && ln -s file link && ln -s loop loop",
        ).check()
        expect(b"Uid:" in container.read_file("/proc/self/status"), "a file of /proc was not read")
        expect_equal(container.read_file("/dev/null"), b"", "the content of /dev/null")
        with expect_error(FileTooLargeError, "an endless device", "limit_bytes"):
            container.read_file("/dev/zero", limit_bytes=1000)
        container.write_file("/dev/null", b"x")
        container.write_file(f"{INSIDE}/file", b"old", mode=0o640)
        container.write_file(f"{INSIDE}/link", b"through the link")
        expect_equal(
            container.read_file(f"{INSIDE}/file"),
            b"through the link",
            "a file written through a link",
        )
        expect_equal(
            container.stat(f"{INSIDE}/link").mode, 0o640, "the mode of a file that was replaced"
        )
        expect_equal(
            container.stat(f"{INSIDE}/link", follow_symlinks=False).kind,
            "symlink",
            "the kind of a link",
        )
        with expect_error(FileNotFoundError, "a link to itself", "loop"):
            container.read_file(f"{INSIDE}/loop")
        with expect_error(
            TransferTimeoutError, "reading a pipe into which nothing is written", "fifo"
        ):
            container.read_file(f"{INSIDE}/fifo", timeout_s=0.3)
        with expect_error(TransferTimeoutError, "writing to a pipe that nothing reads", "fifo"):
            container.write_file(f"{INSIDE}/fifo", b"x", timeout_s=0.3)
        expect_equal(
            container.listdir(INSIDE), ["fifo", "file", "link", "loop"], "names in the directory"
        )


@check("files.user", needs="exec.user")
def other_user(context: Context) -> None:
    """A user reads and writes with its own rights, and new files are its own."""
    with context.start() as container:
        container.write_file("/private/file", b"secret", mode=0o600)
        shell(container, f"mkdir -p {INSIDE} && chmod 777 {INSIDE}").check()
        with expect_error(PermissionError, "reading a file of another user", "/private/file"):
            container.read_file("/private/file", user=_USER)
        with expect_error(PermissionError, "writing a file of another user", "/private"):
            container.write_file("/private/file", b"", user=_USER)
        with expect_error(
            PermissionError, "writing to a directory of another user", "/private/new"
        ):
            container.write_file("/private/new", b"", user=_USER)
        expect_equal(container.read_file("/private/file"), b"secret", "the file of another user")
        container.write_file(f"{INSIDE}/mine", b"mine", user=_USER, mode=0o600)
        facts = container.stat(f"{INSIDE}/mine")
        expect_equal((facts.uid, facts.mode), (_USER.uid, 0o600), "owner and mode of a new file")
        container.write_file(f"{INSIDE}/mine", b"of both")
        expect_equal(
            container.stat(f"{INSIDE}/mine").uid, _USER.uid, "the owner after root wrote to it"
        )


@check("ports.forward", deadline_s=120)
def forward(context: Context) -> None:
    """Clients on the host reach a server in a container without a network, byte for byte, until the
    container ends.
    """
    with context.start() as container:
        if shell(container, "command -v python3").exit_code != 0:
            with expect_error(
                UnsupportedOptionError, "a forwarder in an image without Python", "python3"
            ):
                container.forward(_PORT)
            return
        address = container.forward(_PORT)
        expect_equal(container.forward(_PORT), address, "the address of the same port")
        expect_equal(
            (address[0], _ask(address, b"x")), ("127.0.0.1", b""), "a port on which nothing listens"
        )
        threading.Thread(target=_serve, args=(container,), daemon=True).start()
        reached = context.load.wait_until(lambda: _ask(address, b"hello").startswith(b"5 "), 30)
        expect(reached, "a server on the container's loopback was not reached; is the loopback up?")
        data = os.urandom(_LARGE_BYTES)
        wanted = b"%d %s" % (len(data), hashlib.sha256(data).hexdigest().encode())
        with ThreadPoolExecutor(8) as clients:
            answers = set(clients.map(lambda _: _ask(address, data), range(8)))
        expect_equal(answers, {wanted}, "the answers to 8 clients at once")
    with expect_error(ConnectionRefusedError, "the port of a container that is closed"):
        socket.create_connection(address)


def _serve(container: Container) -> None:
    with suppress(HyperRuntimeError):  # ends with the container
        container.exec(["python3", "-c", _SERVER])


def _ask(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes and the end of them; return the answer, or "" if the connection was closed."""
    answer = b""
    with suppress(ConnectionError), socket.create_connection(address, timeout=60) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while more := client.recv(65536):
            answer += more
    return answer
