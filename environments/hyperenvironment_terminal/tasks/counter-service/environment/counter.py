"""Hand out numbers on a Unix socket, one after another."""

import os
import socketserver

SOCKET = os.path.join(os.environ.get("COUNTER_HOME", "/home/user/counter"), "counter.sock")


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line.strip() == b"next":
                self.server.number += 1
                self.wfile.write(b"%d\n" % self.server.number)


class Server(socketserver.UnixStreamServer):
    number = 0


if __name__ == "__main__":
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    with Server(SOCKET, Handler) as server:
        server.serve_forever()
