"""Record exchanges, and play them back without a model.

A file of recorded exchanges has one JSON object in each line:
``{"key", "path", "request", "status", "type", "body"}``. The key is a digest of the endpoint and of
the client's request, so the file does not depend on the upstream that it was recorded from. The
same request again gets the next recorded answer.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from pathlib import Path

import attrs

from hyperruntime.errors import GatewayError
from hyperruntime.gateway.log.exchange import clean_line
from hyperruntime.gateway.request.parse import ModelRequest, RequestRefusedError
from hyperruntime.json_values import parse_json
from hyperruntime.secrets.redact import Redactor


@attrs.frozen(kw_only=True)
class Recorded:
    """A recorded answer.

    Attributes:
        status: the HTTP status.
        content_type: the media type of the body.
        body: the whole body; for a stream, all its events.
    """

    status: int
    content_type: str
    body: bytes


def exchange_line(call: ModelRequest, answer: Recorded, redactor: Redactor) -> bytes:
    """Return an exchange as a line of the file, without keys and without a newline.

    Args:
        call: the request; its ``key`` must be set.
        answer: the answer to record.
        redactor: removes keys from the line.
    """
    asked = json.dumps({"key": call.key, "path": call.path})
    answered = {
        "status": answer.status,
        "type": answer.content_type,
        "body": answer.body.decode(errors="replace"),
    }
    said = json.dumps(answered, ensure_ascii=False)
    line = (
        asked[:-1].encode()
        + b', "request": '
        + call.as_asked()
        + b", "
        + said[1:].encode(errors="replace")
    )
    return clean_line(line, redactor)


class Replay:
    """Plays back recorded answers in the recorded order; used in the gateway's event loop."""

    def __init__(self, path: str) -> None:
        """Read a file of recorded exchanges.

        Raises:
            GatewayError: the file cannot be read, or a line is not a recorded exchange.
        """
        self._answers: defaultdict[str, deque[Recorded]] = defaultdict(deque)
        try:
            lines = Path(path).read_bytes().splitlines()
        except OSError as error:
            raise GatewayError(
                f"recorded exchanges cannot be read: {error}; record some first"
            ) from error
        for number, line in enumerate(lines, start=1):
            try:
                entry = parse_json(line, finite=True)
                body = entry["body"].encode()
                if (status := int(entry["status"])) not in range(100, 600):
                    raise ValueError(f"no HTTP status: {status}")
                answer = Recorded(status=status, content_type=str(entry["type"]), body=body)
                self._answers[str(entry["key"])].append(answer)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = f"{path}, line {number} is not a recorded exchange; remove it ({error!r})"
                raise GatewayError(why) from error

    def play(self, call: ModelRequest) -> Recorded:
        """Return the next answer to a request.

        Raises:
            RequestRefusedError: the request was not recorded, or all its answers were played.
        """
        answers = self._answers.get(call.key)
        if answers:
            return answers.popleft()
        why = (
            "no such request was recorded"
            if answers is None
            else "it was recorded fewer times than requested"
        )
        raise RequestRefusedError(
            404, "not_recorded", f"{why}: {call.path} for model {call.model!r}; record it again"
        )
