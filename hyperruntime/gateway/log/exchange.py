"""What is known of one exchange, and the log of all."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

import attrs

from hyperruntime.errors import StorageError
from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.gateway.log.redact import Redactor
from hyperruntime.logs import get_logger

log = get_logger(__name__)


# The server's or the account's fault, whatever was asked; a wrong request (400) or a slow answer may be the client's.
_OUTAGES = ("upstream_unreachable", "upstream_timeout", "upstream_lost", "upstream_redirect")
_OUTAGE_STATUSES = frozenset({401, 402, 429, 502, 503, 504, 529})


@attrs.define(kw_only=True)
class Exchange:
    """A request and its answer, as the log tells it.

    Attributes:
        seat: who asked.
        path: of the request.
        model: as the client named it.
        sent_as: as the upstream was told.
        upstream: who answered.
        id: of the answer, as the client got it.
        upstream_id: as the upstream calls it.
        status: that the client got; 0 where it was gone before.
        stream: whether the answer streamed.
        attempts: requests to the upstream.
        request_bytes: of the body.
        answer_bytes: of the body that the client was sent.
        first_byte_s: seconds to the answer's first byte.
        duration_s: seconds to its end.
        tokens: what it used.
        money: what that cost.
        generated: the tokens themselves, when asked for.
        error: a fixed word, and a sentence.
        pending: whether the upstream has a request and its answer is not here yet; not in the log.
    """

    seat: str
    path: str
    model: str = ""
    sent_as: str = ""
    upstream: str = ""
    id: str = ""
    upstream_id: str = ""
    status: int = 0
    stream: bool = False
    attempts: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    first_byte_s: float | None = None
    duration_s: float = 0.0
    tokens: Tokens | None = None
    money: float = 0.0
    generated: dict[str, Any] | None = None
    error: str = ""
    pending: bool = False
    started: float = attrs.field(factory=time.monotonic)
    time: float = attrs.field(factory=time.time)

    @property
    def outage(self) -> str:
        """Which fault of the upstream ended it, in a sentence; nothing where it is not the upstream's."""
        kind = self.error.partition(":")[0]
        if kind in _OUTAGES or (kind == "upstream_error" and self.status in _OUTAGE_STATUSES):
            return f"upstream {self.upstream!r} has no answers after {self.attempts} attempts: {self.error}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the log."""
        line = attrs.asdict(self, filter=lambda field, _: field.name not in ("pending", "started", "tokens"))
        used = self.tokens or Tokens()
        usage = {"input_tokens": used.input, "output_tokens": used.output, "estimated": used.estimated}
        for name in ("first_byte_s", "duration_s"):
            line[name] = None if line[name] is None else round(line[name], 6)
        return {**line, "usage": usage if self.tokens else None}


def clean_line(text: bytes, redactor: Redactor) -> bytes:
    """Return a line of JSON without keys; a line that says so where a key cannot be cut out of it."""
    cleaned = redactor.clean(text)
    if cleaned != text:
        try:
            json.loads(cleaned)
        except (ValueError, RecursionError):
            return json.dumps({"error": "this line held a key"}).encode()
    return cleaned


class LineFile:
    """A file to which lines of JSON are added whole, without keys; only its user may read it."""

    def __init__(self, path: str, redactor: Redactor) -> None:
        """Open it, and make its directory.

        Raises:
            StorageError: it cannot be written.
        """
        self._redactor = redactor
        self._path = path
        self._failed = False
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(self._fd, 0o600)  # it may be of an earlier run
            if (size := status.st_size) and os.pread(self._fd, 1, size - 1) != b"\n":
                os.write(self._fd, b"\n")  # after a line that a kill has torn
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}; name another file") from error

    def write(self, line: dict[str, Any]) -> None:
        """Add one line; a full disk ends no exchange, and is told once."""
        self.add(clean_line(json.dumps(line, ensure_ascii=False).encode(errors="replace"), self._redactor))

    def add(self, cleaned: bytes) -> None:
        """Add one line that is cleaned JSON already."""
        data = cleaned + b"\n"
        try:
            written = os.write(self._fd, data)
            if written < len(data):  # a disk that is full now: what was written must not be half a line
                os.write(self._fd, data[written:])
        except OSError as error:
            if not self._failed:
                log.warning("gateway file cannot be written", path=self._path, error=str(error))
            self._failed = True

    def close(self) -> None:
        """Close it; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
