"""A Unix socket that programs in a container reach through its exchange directory."""

from __future__ import annotations

import os
import socket


def listen_in(directory: str, name: str) -> socket.socket:
    """Return a listening socket in a directory, also where its path is longer than the 107 bytes of
    unix(7).

    Args:
        directory: the exchange directory on the host; it keeps other users of the host out.
        name: name of the socket in it.

    Raises:
        OSError: it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        there = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listener.bind(f"/proc/self/fd/{there}/{name}")
            os.chmod(name, 0o666, dir_fd=there)
        finally:
            os.close(there)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
