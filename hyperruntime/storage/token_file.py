"""The file with the token of a service, which only this user can read."""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path

from hyperruntime.errors import SpecError, StorageError
from hyperruntime.storage.atomic import make_private_directory, open_private, storage_errors
from hyperruntime.wire.tokens import new_token

# source: RFC 6750, 2.1; what HTTP allows in the header
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,1024}")
_OTHERS = 0o077


def default_token_file() -> Path:
    """Return the file of this user's services, in a private directory.

    Raises:
        StorageError: the user has no directory for it.
    """
    try:
        return make_private_directory(state_directory() / "serve") / "token"
    except StorageError as error:
        raise StorageError(f"{error}; or name a file with --token-file") from error


def state_directory() -> Path:
    """Return the library's private state directory of this user; it is made if it is missing.

    Raises:
        StorageError: the user has no home directory, or the directory cannot be made.
    """
    try:
        folder = user_state_path("hyperruntime")
    except RuntimeError as error:
        raise StorageError(
            f"the user has no state directory: {error}; set HOME or XDG_STATE_HOME"
        ) from error
    return make_private_directory(folder)


def token_of(file: Path) -> str:
    """Return the token in a file; a missing file is made, with a new token and mode 0600.

    Raises:
        SpecError: it holds no token, or is not of this user alone.
        StorageError: it cannot be read or made.
    """
    with storage_errors(file):
        if not file.exists():
            _make(file)
        with open(file, "rb", opener=_without_waiting) as opened:
            facts = os.fstat(opened.fileno())
            raw = opened.read(2048)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS:
        raise SpecError(
            "token_file", str(file), "a file of yours that nobody else can read; see `chmod 600`"
        )
    token = raw.decode(errors="replace").strip()
    if not _TOKEN.fullmatch(token):
        raise SpecError(
            "token_file", str(file), "a file with a token: 32 to 1024 letters, digits and `._~+/=-`"
        )
    return token


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # a named pipe must not hold the start


def _make(file: Path) -> None:
    """Write a new token, unless another process does it at the same time."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open_private(partial) as opened:
            opened.write(f"{new_token()}\n".encode())
            opened.flush()
            os.fsync(opened.fileno())
        with suppress(FileExistsError):
            os.link(partial, file)
    finally:
        partial.unlink(missing_ok=True)
