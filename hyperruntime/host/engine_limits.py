"""The time limits of all engine calls, and of other programs of the host: one table, and what they
are now.

A slow engine is not a broken one: on a busy machine, a call that takes 0.3 s elsewhere can take a
minute. So each limit grows with the latency that this process measured. Why:
docs/design/containers.md#time-limits-of-engine-calls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Literal

import attrs

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.errors import EngineLateError
from hyperruntime.host.process import overload

Verb = Literal[
    "probe",
    "output",
    "call",
    "start",
    "unshare",
    "end",
    "turn",
    "close",
    "remove",
    "kill",
    "migrate",
    "copy",
    "reclaim",
    "program",
]

_RECENT_S = 600.0
_KEPT = 64
_GROWTH = 3.0


@attrs.frozen
class TimeLimit:
    """The time limit of one kind of engine call.

    Attributes:
        base_s: the limit, in seconds, while the engine is as quick as usual.
        most_s: the upper bound of the limit, in seconds.
        usual_s: the time that such a call takes at most on a machine that is not overloaded, in
            seconds.
        passed: the consequence when the limit passes.
        what: the call, for an error.
    """

    base_s: float
    most_s: float
    usual_s: float
    passed: str
    what: str = "a call"


LIMITS: Mapping[Verb, TimeLimit] = MappingProxyType(
    {
        "probe": TimeLimit(
            120.0, 600.0, 5.0, "the engine counts as unusable", "a test of the engine"
        ),
        "output": TimeLimit(10.0, 300.0, 2.0, "a test container counts as silent"),
        "call": TimeLimit(120.0, 600.0, 2.0, "the call fails"),
        "start": TimeLimit(
            180.0, 900.0, 5.0, "the container does not start", "the start of a container"
        ),
        "unshare": TimeLimit(
            60.0,
            600.0,
            2.0,
            "no files are reclaimed, or no terminal opens",
            "entering the containers' user namespace",
        ),
        "end": TimeLimit(3.0, 60.0, 2.0, "the container is removed by force"),
        "turn": TimeLimit(
            15.0, 120.0, 2.0, "the container ends beside another one, on Docker before 23"
        ),
        "close": TimeLimit(
            30.0, 300.0, 5.0, "`close` returns, and the removal goes on in the background"
        ),
        "remove": TimeLimit(
            300.0,
            1800.0,
            5.0,
            "the attempt ends; another one follows",
            "the removal of a container",
        ),
        "kill": TimeLimit(
            10.0, 60.0, 2.0, "the attempt to remove the container fails; another one follows"
        ),
        "migrate": TimeLimit(
            120.0, 600.0, 10.0, "Podman keeps what it remembers of killed processes"
        ),
        "copy": TimeLimit(600.0, 1800.0, 60.0, "the container runs in the user's slow store"),
        "reclaim": TimeLimit(
            60.0, 600.0, 10.0, "the files stay, and the log names their directory"
        ),
        "program": TimeLimit(60.0, 600.0, 5.0, "what needs the answer of the program fails"),
    }
)
# Per engine: when a call ended, and how much longer it took than usual. A deque is safe in threads
# and after a fork.
_delays: PerProcess[dict[str, deque[tuple[float, float]]]] = PerProcess(dict)


def limit_s(engine: str, verb: Verb) -> float:
    """Return the time limit of a call now, in seconds.

    It is the base times :func:`~hyperruntime.host.process.overload`, plus three times the longest
    delay of the engine's calls in the last ten minutes, and at most the upper bound.

    Args:
        engine: the driver's name; "" stands for the slowest engine of this process.
        verb: the kind of call.
    """
    limit = LIMITS[verb]
    return min(limit.most_s, limit.base_s * overload() + _GROWTH * _longest_delay_s(engine))


def note_duration(engine: str, verb: Verb, duration_s: float) -> None:
    """Learn from a call that ended, or that ran into its limit.

    Args:
        engine: the driver's name.
        verb: the kind of call.
        duration_s: seconds that it took.
    """
    delay_s = max(0.0, duration_s - LIMITS[verb].usual_s)
    _delays.get().setdefault(engine, deque(maxlen=_KEPT)).append((time.monotonic(), delay_s))


def forget_delays() -> None:
    """Forget what was measured."""
    _delays.get().clear()


@contextmanager
def engine_call(engine: str, verb: Verb) -> Iterator[float]:
    """Measure an engine call; yield its time limit in seconds.

    Raises:
        EngineLateError: the call raised TimeoutError; the message names the call and the limit.
    """
    allowed_s = limit_s(engine, verb)
    started = time.monotonic()
    try:
        yield allowed_s
    except TimeoutError as error:
        why = f"{engine} did not finish {LIMITS[verb].what} within {allowed_s:.0f} s"
        raise EngineLateError(
            f"{why}; the engine or the machine is overloaded, see `hyperrun doctor`"
        ) from error
    finally:
        note_duration(engine, verb, time.monotonic() - started)


def _longest_delay_s(engine: str) -> float:
    oldest = time.monotonic() - _RECENT_S
    delays = _delays.get()
    known = list(delays.values()) if not engine else [delays.get(engine, deque())]
    return max(
        (delay_s for calls in known for ended, delay_s in tuple(calls) if ended >= oldest),
        default=0.0,
    )
