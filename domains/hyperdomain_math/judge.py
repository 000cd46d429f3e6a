"""Judge answers: verify each in a process of its own, and compare the value with the record."""

from __future__ import annotations

import json
import signal
from fractions import Fraction
from typing import Any

import attrs

from hyperdomain_math.checker import MEMORY_BYTES
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.process import ProcessLimits, python_args, run_process
from hyperruntime.units import MIB

MAX_ANSWER_BYTES = 8 * MIB
_WALL_TIMES = 4.0  # on a machine with much other work
_MAX_OUTPUT_BYTES = 32 * MIB


@attrs.frozen(kw_only=True)
class Verdict:
    """The result of a check.

    Attributes:
        value: the exact value; None for an answer that was refused.
        refused: why it was refused; "" if it was not.
        shapes: SVG that shows the answer, if it was asked for.
    """

    value: Fraction | None
    refused: str = ""
    shapes: tuple[str, ...] = ()


def judge(
    name: str,
    answer: Any,  # noqa: ANN401 - any value
    *,
    draw: bool = False,
    cpu_s: int = 60,
) -> Verdict:
    """Return the verdict on an answer; no answer raises an error.

    Args:
        name: of the problem.
        answer: any value; what is not JSON is refused.
        draw: whether shapes are wanted.
        cpu_s: CPU seconds that the check may take.

    Raises:
        HyperRuntimeError: the process of the check could not run, for no fault of the answer.
    """
    try:
        asked = json.dumps({"problem": name, "draw": draw, "answer": answer}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # json refuses to write an integer of more digits than Python converts
        large = isinstance(error, ValueError) and "digits" in str(error)
        reason = "too large: an integer" if large else "not JSON: " + " ".join(str(error).split())
        return Verdict(value=None, refused=reason[:200])
    if len(asked) > MAX_ANSWER_BYTES:
        most = f"at most {MAX_ANSWER_BYTES} are allowed"
        return Verdict(value=None, refused=f"too large: {len(asked)} bytes, {most}")
    limits = ProcessLimits(memory_bytes=MEMORY_BYTES, output_bytes=_MAX_OUTPUT_BYTES)
    args = python_args("-m", "hyperdomain_math.checker", str(cpu_s))
    try:
        done = run_process(args, input=asked, timeout_s=_WALL_TIMES * cpu_s, limits=limits)
    except TimeoutError:
        done = None
    if done is None or done.exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(value=None, refused=f"too large: the check took more than {cpu_s} CPU s")
    if done.exit_code:
        raise HyperRuntimeError(
            f"the process that verifies answers failed: {done.error_text}; free memory and try again"
        )
    said = json.loads(done.stdout)
    if "refused" in said:
        return Verdict(value=None, refused=said["refused"])
    return Verdict(value=Fraction(said["value"]), shapes=tuple(said["shapes"]))
