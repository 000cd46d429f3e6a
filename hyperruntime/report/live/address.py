"""Where the page of a run is served, and the token that opens it.

Both stay the same when the server starts again, unless another program has the port.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import stat
from contextlib import closing, suppress
from pathlib import Path

import attrs
from platformdirs import user_state_path

from hyperruntime.errors import RunError, StorageError
from hyperruntime.json_values import is_integer, json_object_of_file
from hyperruntime.storage.atomic import make_private_directory, open_private, storage_errors

LOOPBACK = "127.0.0.1"
_PRIVATE = 0o700
_LEAST_TOKEN = 32


@attrs.frozen(kw_only=True)
class Ticket:
    """The token of a run's page, and the port that it had last.

    Attributes:
        token: 43 characters that only this user knows; the first part of every path.
        port: the port of the last server; 0 if there was none.
        file: where both are kept, with mode 0600.
    """

    token: str
    port: int
    file: Path

    @property
    def path(self) -> str:
        """The path of the page."""
        return f"/{self.token}/"

    def at(self, port: int) -> Ticket:
        """Return the ticket of a server on a port; a new token if pages of the last server ask at another port.

        Another user may listen there, and gets the token of each page that asks.
        """
        token = self.token if self.port in (0, port) else _new_token()
        return attrs.evolve(self, token=token, port=port)

    def keep(self) -> None:
        """Remember the token and the port.

        Raises:
            StorageError: the file cannot be written.
        """
        partial = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        with storage_errors(self.file):
            partial.unlink(missing_ok=True)
            with open_private(partial) as file:
                file.write(json.dumps({"token": self.token, "port": self.port}).encode())
            os.replace(partial, self.file)


def ticket_of(run_dir: Path) -> Ticket:
    """Return the ticket of a run for this user; a new one if there is none.

    Raises:
        StorageError: the user has no directory for it, or it cannot be written.
    """
    try:
        folder = user_state_path("hyperruntime")
    except RuntimeError as error:
        raise StorageError(f"the user has no state directory: {error}; set HOME or XDG_STATE_HOME") from error
    make_private_directory(folder)
    folder = make_private_directory(folder / "watch")
    file = folder / f"{hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:32]}.json"
    found = json_object_of_file(file) or {}
    token, port = found.get("token"), found.get("port")
    if not isinstance(token, str) or len(token) < _LEAST_TOKEN or not token.replace("-", "_").isidentifier():
        token = _new_token()
    return Ticket(token=token, port=port if is_integer(port) and 0 < port < 65536 else 0, file=file)


def _new_token() -> str:
    """Return a token that is also a name: it begins with a letter."""
    return f"t{secrets.token_urlsafe(32)}"


def listen_on_loopback(wanted: int, remembered: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1.

    Args:
        wanted: the port; 0 means the remembered one if it is free, else any free one.
        remembered: the port of the last server, or 0.

    Raises:
        RunError: the wanted port cannot be used.
    """
    if wanted == 0 and remembered:
        with suppress(OSError):
            return _listening(remembered)
    try:
        return _listening(wanted)
    except OSError as error:
        raise RunError(f"port {wanted} cannot be used: {error.strerror}; give another --port") from error


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOOPBACK, port))
        made.listen(256)
    except BaseException:
        made.close()
        raise
    return made


def listen_on_socket(path: Path) -> socket.socket:
    """Return a listening Unix socket in a directory that only this user may enter; a missing directory is made.

    Raises:
        RunError: the directory is open to others, or another server uses the socket.
        StorageError: the directory cannot be made.
    """
    path = path.absolute()
    folder = path.parent
    if not folder.exists():
        make_private_directory(folder)
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != _PRIVATE or found.st_uid != os.geteuid():
        raise RunError(
            f"{str(folder)!r} is not a directory that only you may enter; name one with `mkdir -m 700`, or one that "
            "does not exist yet"
        )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        made.bind(str(path))
        made.listen(256)
    except OSError as error:
        made.close()
        raise RunError(f"socket {str(path)!r} cannot be made: {error.strerror or error}; give another path") from error
    except BaseException:
        made.close()
        raise
    return made


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone.

    Raises:
        RunError: a server answers.
    """
    if not path.is_socket():
        return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise RunError(f"another server uses socket {str(path)!r}; end it, or give another path")
