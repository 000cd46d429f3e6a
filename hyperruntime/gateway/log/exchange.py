"""The log entry of one exchange, and the files that entries are appended to."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any

import attrs

from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.secrets.redact import Redactor
from hyperruntime.storage.atomic import storage_errors

log = get_logger(__name__)


BROKEN = "upstream_broken"  # an answer that is the fault of the server or the account
_OUTAGES = (
    BROKEN,
    *("upstream_unreachable", "upstream_timeout", "upstream_lost", "upstream_redirect"),
    *("upstream_malformed", "answer_not_text"),
)


@attrs.define(kw_only=True)
class Exchange:
    """A request and its answer, as an entry of the log.

    Attributes:
        seat: name of the seat.
        path: path of the request.
        model: model name that the client sent.
        sent_as: model name that the upstream got.
        upstream: name of the upstream.
        id: identifier of the answer that the client got.
        upstream_id: identifier of the answer that the upstream sent.
        status: HTTP status that the client got; 0 if it left before.
        stream: whether the client asked for a stream.
        attempts: requests to the upstream.
        request_bytes: size of the request's body.
        answer_bytes: size of the body sent to the client.
        first_byte_s: seconds to the answer's first byte; None if there was none.
        duration_s: seconds to the end of the exchange.
        tokens: the usage; None if the request was not sent on.
        money: the cost of the usage.
        generated: the generated tokens; None if they were not requested.
        error: a fixed word, a colon and a sentence; "" if there was no error.
        pending: whether the upstream has the request and the answer has not arrived; not in the
            log.
        started: monotonic time in seconds of the start; not in the log.
        time: Unix time in seconds of the start.
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
        """The fault of the upstream that ended the exchange, as a sentence; "" if the upstream is
        not at fault.
        """
        kind = self.error.partition(":")[0]
        if kind in _OUTAGES:
            return f"upstream {self.upstream!r} failed after {self.attempts} attempts: {self.error}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        line = attrs.asdict(
            self, filter=lambda field, _: field.name not in ("pending", "started", "tokens")
        )
        used = self.tokens or Tokens()
        usage = {
            "input_tokens": used.input,
            "output_tokens": used.output,
            "estimated": used.estimated,
        }
        for name in ("first_byte_s", "duration_s"):
            line[name] = None if line[name] is None else round(line[name], 6)
        return {**line, "usage": usage if self.tokens else None}


def clean_line(text: bytes, redactor: Redactor) -> bytes:
    """Return a line with a JSON object, without keys; if a key cannot be cut out, return a line
    with an error instead.

    Args:
        text: the line, without its newline.
        redactor: removes the keys.
    """
    cleaned = redactor.clean(text)
    if cleaned != text and json_object(cleaned) is None:
        return json.dumps({"error": "this line held a key"}).encode()
    return cleaned


class LineFile:
    """A file that lines of JSON without keys are appended to; only its owner may read it."""

    def __init__(self, path: str, redactor: Redactor) -> None:
        """Open the file, and create its directory.

        Args:
            path: path of the file, which may exist.
            redactor: removes the keys from each line.

        Raises:
            StorageError: the file cannot be written.
        """
        self._redactor = redactor
        self._path = path
        self._failed = False
        with storage_errors(path):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            # appended in one write, a line stays whole beside those of other processes
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(self._fd, 0o600)  # an earlier run may have created it
            if (size := status.st_size) and os.pread(self._fd, 1, size - 1) != b"\n":
                os.write(self._fd, b"\n")  # a kill truncated the last line

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, without keys; a write error is logged once and not raised."""
        self.add(
            clean_line(
                json.dumps(line, ensure_ascii=False).encode(errors="replace"), self._redactor
            )
        )

    def add(self, cleaned: bytes) -> None:
        """Append one line of JSON that holds no keys; a write error is logged once and not
        raised.
        """
        data = cleaned + b"\n"
        try:
            written = os.write(self._fd, data)
            if written < len(data):  # the disk is full: write the rest or fail
                os.write(self._fd, data[written:])
        except OSError as error:
            if not self._failed:
                log.warning("gateway file cannot be written", path=self._path, error=str(error))
            self._failed = True

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
