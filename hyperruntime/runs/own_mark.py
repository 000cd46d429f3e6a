"""The mark of this user in the file of a run's options, by which a run directory that somebody else
made is known.

The mark is a keyed digest (HMAC) of the whole file and of the inode number of its directory. Its
key is in this user's state directory and in no run: so nobody else can make one or change a marked
file, and a copy of the directory has no valid mark, also if it was this user's and came back with
other files in it. A directory that is renamed keeps its mark. What a file without a valid mark asks
of the host needs this user's consent. Why: docs/design/runs.md#runs-that-others-made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hyperruntime.errors import RunError, SpecError, StorageError
from hyperruntime.logs import get_logger
from hyperruntime.storage.token_file import state_directory, token_of

log = get_logger(__name__)

MARK = "mark"
_KEY_FILE = "run-mark.key"


class ReceivedRunError(RunError):
    """A run directory that this user did not make asks for something of the host.

    Attributes:
        path: the file of the run that asks.
        requests: what it asks for, each as on the command line.
    """

    exit_code = 2

    def __init__(self, path: str, requests: Sequence[str]) -> None:
        """Store the fields and make the message."""
        self.path = path
        self.requests = tuple(requests)
        super().__init__(
            f"{path!r} was made elsewhere and asks for {self.listed}; accept "
            f"{'it' if len(requests) == 1 else 'them'} with --trust"
        )

    @property
    def listed(self) -> str:
        """The requests in words."""
        *most, last = self.requests
        return f"{', '.join(most)} and {last}" if most else last


def how_to_accept(command: str, directory: Path) -> str:
    """Return the step that makes a run this user's, such as
    ``accept it first with `hyperrun resume DIR --trust` ``.

    Args:
        command: the words of the command before the directory.
        directory: of the run.
    """
    return f"accept it first with `hyperrun {command} {shlex.quote(str(directory))} --trust`"


def with_own_mark(value: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the JSON object of a run's file with this user's mark; without a mark if the user can
    have no key.

    Args:
        value: the object.
        directory: the directory of the file, which must exist.
    """
    plain = {name: one for name, one in value.items() if name != MARK}
    key = _key()
    return plain if key is None else {**plain, MARK: _digest(key, plain, directory)}


def has_own_mark(value: Mapping[str, Any], directory: Path) -> bool:
    """Return whether this user marked exactly this JSON object in this directory.

    Args:
        value: the object.
        directory: the directory of the file.
    """
    said = value.get(MARK)
    key = _key()
    if key is None or not isinstance(said, str):
        return False
    plain = {name: one for name, one in value.items() if name != MARK}
    try:
        return hmac.compare_digest(
            said.encode(errors="replace"), _digest(key, plain, directory).encode()
        )
    except (OSError, ValueError, RecursionError):  # hostile JSON
        return False


def check_requests(
    path: Path, value: Mapping[str, Any], requests: Sequence[str], *, trust: bool
) -> None:
    """Check that a run's file may ask for what it asks for: it asks for nothing, or this user made
    or accepts it.

    Args:
        path: the file.
        value: its content.
        requests: what it asks of the host, each as on the command line.
        trust: whether the user accepts the requests.

    Raises:
        ReceivedRunError: it may not.
    """
    if requests and not trust and not has_own_mark(value, path.parent):
        raise ReceivedRunError(str(path), requests)


def _digest(key: bytes, value: Mapping[str, Any], directory: Path) -> str:
    # Not the number of the device, which changes at a mount or a boot.
    # Twice: names that are numbers become texts, as in the file, before they are sorted.
    text = json.dumps([os.stat(directory).st_ino, json.loads(json.dumps(value))], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return this user's key, which is made on first use; None if that is not possible, which is
    logged once.
    """
    try:
        return _key_in(state_directory() / _KEY_FILE)
    except StorageError as error:
        _warn(str(error))
        return None


@cache
def _key_in(file: Path) -> bytes | None:
    try:
        return token_of(file).encode()
    except (SpecError, StorageError) as error:
        _warn(f"{error}; correct or remove {str(file)!r}")
        return None


@cache
def _warn(why: str) -> None:
    log.warning(
        "runs cannot be marked as this user's; a resume may ask what the run may use", reason=why
    )
