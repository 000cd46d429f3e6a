"""The first message of a node: its version, what it received, and facts about itself; each field is
checked.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from hyperruntime.json_values import json_object
from hyperruntime.wire.checks import Line, Within
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import checked

_MOST_BYTES = 1 << 16
_MOST_AGE_S = 1e10  # three hundred years; a clock that was wrong by fifty is possible


@attrs.frozen(kw_only=True)
class Facts:
    """Report of a node about itself.

    Attributes:
        host: the batch system's name of the node if it gives one, else the machine's.
        pid: the node server's process.
        time: seconds since 1970, by the node's clock.
        job: its number in the batch system, or "".
        age_s: age of the job.
    """

    host: str = attrs.field(default="", validator=Line(255))
    pid: int = attrs.field(default=0, validator=Within(0, 1 << 31))
    time: float = attrs.field(default=0.0, validator=Within(-1e12, 1e12))
    job: str = attrs.field(default="", validator=Line(255))
    age_s: float = attrs.field(default=0.0, validator=Within(0, _MOST_AGE_S))


@attrs.frozen(kw_only=True)
class Hello:
    """The first message of a node on a connection.

    Attributes:
        version: of this library on the node.
        session: distinguishes the processes that have the same token.
        received: the number of the last frame that the node has.
        facts: about the node.
    """

    version: str = attrs.field(validator=Line(100))
    session: str = attrs.field(validator=Line(100))
    received: int = attrs.field(validator=Within(0, (1 << 64) - 1))
    facts: Facts = Facts()

    def to_json(self) -> str:
        """Return the text of the message."""
        return json.dumps(attrs.asdict(self))


@attrs.frozen(kw_only=True)
class HelloAnswer:
    """The head's answer to a hello.

    Attributes:
        received: the number of the last frame that the head has.
        refused: why it refuses the node, or "".
    """

    received: int = attrs.field(default=0, validator=Within(0, (1 << 64) - 1))
    refused: str = attrs.field(default="", validator=Line(10_000))

    def to_json(self) -> str:
        """Return the text of the message."""
        return json.dumps(
            {"refused": self.refused} if self.refused else {"received": self.received}
        )


class OtherVersionError(PeerFaultError):
    """The node has another version of this library; the text says which."""


def parse_hello(text: object, version: str) -> Hello:
    """Return the hello of a node.

    Args:
        text: its text.
        version: of this library on the head; of another one, the other fields may be different.

    Raises:
        OtherVersionError: the node has another version.
        PeerFaultError: it is not valid.
    """
    value = _object(text)
    theirs = value.get("version")
    if (
        isinstance(theirs, str)
        and theirs != version
        and len(theirs) <= 100
        and theirs.isprintable()
    ):
        raise OtherVersionError(f"it has hyperruntime {theirs}, the head has {version}")
    return checked(Hello, value, "its hello")


def parse_answer(text: object) -> HelloAnswer:
    """Return the head's answer to a hello.

    Raises:
        PeerFaultError: it is not valid.
    """
    return checked(HelloAnswer, _object(text), "the answer to the hello")


def _object(text: object) -> dict[str, Any]:
    value = json_object(text) if isinstance(text, str) and len(text) <= _MOST_BYTES else None
    if value is None:
        raise PeerFaultError(f"the hello is not a JSON object of at most {_MOST_BYTES} characters")
    return value
