"""Listening sockets of our own servers, and which names and addresses mean this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.storage.atomic import make_private_directory

LOOPBACK = "127.0.0.1"
_HOSTS = frozenset({LOOPBACK, "localhost", "[::1]"})
_PRIVATE = 0o700


class ListenError(HyperRuntimeError):
    """A port or a socket of this machine cannot be listened on."""


def names_this_machine(host: str) -> bool:
    """Return whether the ``Host`` header of a request names this machine.

    With DNS rebinding, the header has the name of another site, which was made to point to this
    machine.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.lower() in _HOSTS


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach a listening socket of TCP."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def listen_on(host: str, port: int) -> socket.socket:
    """Return a listening socket on the first address of a host; port 0 means any free one.

    Raises:
        ListenError: the host has no address of this machine, or the port cannot be used.
    """
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return _listening(family, address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ListenError(
            f"cannot listen on {host}:{port}: {reason}; give another --host or --port"
        ) from error


def listen_on_loopback(wanted: int, remembered: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1.

    Args:
        wanted: the port; 0 means the remembered one if it is free, else any free one.
        remembered: the port of the last server, or 0.

    Raises:
        ListenError: the wanted port cannot be used.
    """
    if wanted == 0 and remembered:
        with suppress(OSError):
            return _listening(socket.AF_INET, (LOOPBACK, remembered))
    try:
        return _listening(socket.AF_INET, (LOOPBACK, wanted))
    except OSError as error:
        raise ListenError(
            f"port {wanted} cannot be used: {error.strerror}; give another --port"
        ) from error


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` does not mean 0.0.0.0 too
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(256)
    except BaseException:
        made.close()
        raise
    return made


def listen_on_socket(path: Path) -> socket.socket:
    """Return a listening Unix socket in a directory that only this user may enter; a missing
    directory is made.

    Raises:
        ListenError: the directory is open to others, another server uses the socket, or it cannot
            be made.
        StorageError: the directory cannot be made.
    """
    path = path.absolute()
    folder = path.parent
    if not folder.exists():
        make_private_directory(folder)
    found = os.stat(folder)
    if (
        not stat.S_ISDIR(found.st_mode)
        or stat.S_IMODE(found.st_mode) != _PRIVATE
        or found.st_uid != os.geteuid()
    ):
        raise ListenError(
            f"{str(folder)!r} is not a directory that only you may enter; name one with `mkdir "
            "-m 700`, or one that does not exist yet"
        )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(str(path))
        made.listen(256)
    except OSError as error:
        made.close()
        raise ListenError(
            f"socket {str(path)!r} cannot be made: {error.strerror or error}; give another path"
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone.

    Raises:
        ListenError: a server answers.
    """
    if not path.is_socket():
        return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ListenError(f"another server uses socket {str(path)!r}; end it, or give another path")


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
