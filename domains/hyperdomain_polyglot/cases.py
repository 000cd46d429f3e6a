"""Test a program by calls with known results: the container gets the calls, and the host compares
the results.

The expected results never enter the container, so the tested program cannot read them or change the
comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs

from hyperruntime.domain import Trial, TrialResult
from hyperruntime.json_values import json_object

CALLER = "_caller.py"


@attrs.frozen
class Cases:
    """Calls of one module's functions.

    Attributes:
        module: the module's name.
        cases: each has ``call`` and ``args``, and either ``expect`` (a JSON value) or ``raises`` (a
            class name).
        timeout_s: the deadline of all calls together, in seconds.
    """

    module: str
    cases: Sequence[Mapping[str, Any]]
    timeout_s: float = 10.0

    def trial(self, files: Mapping[str, str]) -> Trial:
        """Return the program that makes the calls, without the expected results."""
        caller = (resources.files("hyperdomain_polyglot") / "caller.py").read_text(encoding="utf-8")
        calls = [{"call": case["call"], "args": case["args"]} for case in self.cases]
        return Trial(
            args=("python3", "-B", CALLER),
            files={**files, CALLER: caller},
            input=json.dumps({"module": self.module, "calls": calls}).encode(),
            timeout_s=self.timeout_s,
        )

    def count(self, result: TrialResult) -> tuple[int, int, str]:
        """Return the number of correct calls, the number of all calls and one sentence."""
        said = _outcomes(result.stdout)
        passed = sum(
            number in said and _is_right(case, said[number])
            for number, case in enumerate(self.cases)
        )
        ended = ", and did not end in time" if result.timed_out else ""
        return passed, len(self.cases), f"{passed} of {len(self.cases)} hidden tests pass{ended}"


def _outcomes(output: bytes) -> dict[int, Mapping[str, Any]]:
    """Return the first printed outcome of each call, by the call's number."""
    outcomes: dict[int, Mapping[str, Any]] = {}
    for value in map(json_object, output.splitlines()):
        if value is not None and type(value.get("number")) is int:
            outcomes.setdefault(value["number"], value)
    return outcomes


def _is_right(case: Mapping[str, Any], outcome: Mapping[str, Any]) -> bool:
    if "raises" in case:
        raised = outcome.get("raises")
        return isinstance(raised, list) and case["raises"] in raised
    return "value" in outcome and same(case["expect"], outcome["value"])


def same(expected: Any, said: Any) -> bool:  # noqa: ANN401 - any JSON values
    """Return whether two JSON values are equal; unlike in Python, true does not equal 1."""
    if isinstance(expected, list):
        return (
            isinstance(said, list) and len(said) == len(expected) and all(map(same, expected, said))
        )
    if isinstance(expected, dict):
        return (
            isinstance(said, dict)
            and said.keys() == expected.keys()
            and all(same(expected[k], said[k]) for k in said)
        )
    return isinstance(expected, bool) == isinstance(said, bool) and expected == said
