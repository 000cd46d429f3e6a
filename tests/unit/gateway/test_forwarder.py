"""The forwarder as a program: what clients notice when there are more of them than descriptors."""

from __future__ import annotations

import os
import queue
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hyperruntime.exec.options import ExecOptions
from hyperruntime.ports import forward, forwarder
from hyperruntime.spec import ExecResult, Mount


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


def test_more_clients_than_descriptors_are_refused_and_later_ones_are_served(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "gateway")
    with socketserver.ThreadingUnixStreamServer(path, Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["prlimit", "--nofile=48:48", sys.executable, forwarder.__file__, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            try:
                assert program.stdout is not None
                port = int(program.stdout.readline())
                crowd = [
                    socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(60)
                ]
                served = [client for client in crowd if answer(client) == b"hello\n"]
                assert 4 <= len(served) < 60
                for client in crowd:
                    client.close()
                answered = b""
                while answered != b"hello\n":  # the program sees the closed ones in its own time
                    assert program.poll() is None
                    with socket.create_connection(("127.0.0.1", port), timeout=60) as later:
                        answered = answer(later)
            finally:
                program.kill()
        server.shutdown()


def test_silent_connections_from_the_container_take_no_descriptors_and_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_GREET_S", 0.2)
    token, over = queue.Queue[str](), threading.Event()

    def run(_: list[str], options: ExecOptions) -> ExecResult:
        assert options.env is not None
        token.put(options.env[forwarder.TOKEN])
        over.wait(60)
        return ExecResult(
            args=(),
            exit_code=0,
            stdout=b"",
            stderr=b"",
            timed_out=False,
            truncated=False,
            duration_s=0,
        )

    def connect(said: bytes) -> socket.socket:
        (path,) = tmp_path.glob("forward-*")
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(said)
        return connection

    def attack() -> None:
        word = token.get(timeout=60)
        silent.extend(connect(b"") for _ in range(50))
        counts.append(len(os.listdir("/proc/self/fd")))
        good.append(connect(word.encode()))

    silent: list[socket.socket] = []
    good: list[socket.socket] = []
    counts = [len(os.listdir("/proc/self/fd"))]
    threading.Thread(target=attack, daemon=True).start()
    opened = forward.Forward(
        "podman", run, 80, "127.0.0.1", Mount(source=str(tmp_path), target="/x"), ExecOptions()
    )
    try:
        with socket.create_connection(opened.address, timeout=60) as client:
            client.sendall(b"hello\n")
            assert good[0].recv(1) == forwarder.GO
            assert good[0].recv(6) == b"hello\n"
        assert counts[1] - counts[0] <= 50 + 2 * forwarder.IDLE + 12
    finally:
        over.set()
        opened.close()
        for connection in (*silent, *good):
            connection.close()


def answer(client: socket.socket) -> bytes:
    """Send a line and return the answer; empty if the connection was closed."""
    try:
        client.sendall(b"hello\n")
        return client.makefile("rb").readline()
    except ConnectionError:
        return b""
