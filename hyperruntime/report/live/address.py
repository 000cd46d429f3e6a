"""The token that opens the page of a run, and the port where it is served.

Both stay the same when the server starts again, unless it gets another port.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import attrs

from hyperruntime.json_values import is_integer
from hyperruntime.storage.atomic import make_private_directory, open_private, storage_errors
from hyperruntime.storage.run_files import read_run_json
from hyperruntime.storage.token_file import state_directory
from hyperruntime.wire.tokens import new_token

_LEAST_TOKEN = 32


@attrs.frozen(kw_only=True)
class Ticket:
    """The token of a run's page, and the port that it had last.

    Attributes:
        token: a secret of 32 characters or more; the first part of every path.
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
        """Return the ticket of a server on a port; the token is new if the last server had another
        port.

        Open pages still send the old token to the old port, where another user may listen now.
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
    folder = make_private_directory(state_directory() / "watch")
    file = folder / f"{hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:32]}.json"
    found = read_run_json(file, below=file.parent) or {}
    token = found.get("token")
    port = found.get("port")
    if (
        not isinstance(token, str)
        or len(token) < _LEAST_TOKEN
        or not token.replace("-", "_").isidentifier()
    ):
        token = _new_token()
    return Ticket(token=token, port=port if is_integer(port) and 0 < port < 65536 else 0, file=file)


def _new_token() -> str:
    """Return a token that is also a name: it begins with a letter."""
    return f"t{new_token()}"
