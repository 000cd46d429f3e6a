"""A process that verifies one answer, with limits on its time and memory.

It reads ``{"problem", "draw", "answer"}`` as JSON from standard input. It prints ``{"value"}``, the
exact value as ``p/q``, with ``"shapes"`` of SVG if they were asked for; or ``{"refused"}``, the
reason.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from fractions import Fraction
from typing import Any, NoReturn

from hyperdomain_math.exact import MAX_DIGITS, RefusedError
from hyperdomain_math.table import PROBLEMS

MEMORY_BYTES = 1 << 30


def main() -> None:
    """Verify the answer on standard input; the argument is the limit of CPU seconds."""
    for kind, limit in (
        (resource.RLIMIT_CPU, int(sys.argv[1])),
        (resource.RLIMIT_AS, MEMORY_BYTES),
    ):
        hard = resource.getrlimit(kind)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        resource.setrlimit(kind, (least, least))
    try:
        said: dict[str, Any] = _verdict(sys.stdin.buffer.read())
    except RefusedError as error:
        said = {"refused": str(error)}
    except MemoryError:
        said = {"refused": f"too large: the check needs more than {MEMORY_BYTES >> 20} MiB"}
    except RecursionError:
        said = {"refused": "not JSON: it is nested too deep"}
    except Exception as error:  # noqa: BLE001 - no answer may look like a fault of this machine
        said = {"refused": f"the check failed: {type(error).__name__}: {error}"[:300]}
    print(json.dumps(said))


def _verdict(data: bytes) -> dict[str, Any]:
    asked = json.loads(data, parse_constant=_not_finite, parse_float=_float, parse_int=_integer)
    problem = PROBLEMS[asked["problem"]]
    value: Fraction = problem.verify(asked["answer"])
    return {
        "value": str(value),
        "shapes": problem.draw(asked["answer"]) if asked["draw"] else [],
    }


def _not_finite(word: str) -> NoReturn:
    raise RefusedError(f"not finite: the answer contains {word}")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise RefusedError("not finite: the answer contains a number above all floats")
    return number


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS + 1:
        raise RefusedError(f"too large: an integer of {len(text)} digits")
    return int(text)


if __name__ == "__main__":
    main()
