"""The forwarder as a program: what clients notice when there are more of them than descriptors."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

from hyperruntime.ports import forwarder


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


def test_more_clients_than_descriptors_are_refused_and_later_ones_are_served(tmp_path: Path) -> None:
    path = str(tmp_path / "gateway")
    with socketserver.ThreadingUnixStreamServer(path, Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["prlimit", "--nofile=48:48", sys.executable, forwarder.__file__, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            try:
                assert program.stdout is not None
                port = int(program.stdout.readline())
                crowd = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(60)]
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


def answer(client: socket.socket) -> bytes:
    """Send a line and return the answer; empty if the connection was closed."""
    try:
        client.sendall(b"hello\n")
        return client.makefile("rb").readline()
    except ConnectionError:
        return b""
