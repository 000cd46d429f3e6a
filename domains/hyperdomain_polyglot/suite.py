"""Tests that are code, as public exercises have them: they run in the program's own process. Imports the domain seam.

What such a process says of itself can be forged by the program it runs. For Python, our runner makes that hard: the
number of tests is known on the host beforehand, and in a second run a test that must fail has to fail. For other
languages the exit code of their own test command is all there is.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

import attrs

from hyperruntime.domain import Trial, TrialResult

RUNNER = "_runner.py"
COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "python": ("python3", "-B", RUNNER),
        "go": ("go", "test", "./..."),
        "rust": ("cargo", "test", "--offline", "--", "--include-ignored"),
        "javascript": ("npx", "--no-install", "jest"),
        "java": ("gradle", "--offline", "test"),
        "cpp": ("sh", "-c", "cmake -DEXERCISM_RUN_ALL_TESTS=1 -B _build . && cmake --build _build"),
    }
)
"""How the tests of each language are run, in a directory that holds program and tests; nothing is downloaded."""


@attrs.frozen
class Suite:
    """Test files of one language.

    Attributes:
        language: names the command.
        tests: the test files by path.
        files: all files that stand beside the program, the tests too.
        timeout_s: seconds they may take.
    """

    language: str
    tests: Mapping[str, bytes]
    files: Mapping[str, bytes]
    timeout_s: float = 120.0

    def trial(self, files: Mapping[str, str]) -> Trial:
        """Return the test command, with the answer's files among those of the exercise; the tests have precedence."""
        command, beside = COMMANDS[self.language], dict(self.files)
        if self.language == "python":
            runner = resources.files("hyperdomain_polyglot") / "runner.py"
            beside[RUNNER] = runner.read_bytes()
            command = (*command, *self.tests)
        return Trial(args=command, files={**files, **beside}, timeout_s=self.timeout_s)

    def count(self, result: TrialResult) -> tuple[int, int, str]:
        """Return how many tests passed; where only the whole is known, it counts as one."""
        if self.language == "python":
            return self._count_python(result)
        if result.exit_code == 127:
            return 0, 1, f"the image has no toolchain for {self.language}: {COMMANDS[self.language][0]} is missing"
        passed = int(result.exit_code == 0 and not result.timed_out)
        return passed, 1, "the hidden tests pass" if passed else "the hidden tests do not pass"

    def _count_python(self, result: TrialResult) -> tuple[int, int, str]:
        total = sum(_count_tests(source) for source in self.tests.values())
        said = _last_object(result.stdout)
        if said.get("canary") is not True or said.get("ran") != total:
            return 0, total, "the hidden tests did not run to their end"
        passed = said.get("passed")
        passed = passed if type(passed) is int and 0 <= passed <= total else 0
        return passed, total, f"{passed} of {total} hidden tests pass"


def _count_tests(source: bytes) -> int:
    """Return how many test methods a file of unittest has."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test") for kind in classes for node in kind.body
    )


def _last_object(output: bytes) -> Mapping[str, Any]:
    """Return the JSON object on the last line, or an empty one."""
    lines = output.splitlines() or [b""]
    try:
        value = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
