"""Test a program by test files, as public exercises have them; they run in the program's own process.

The tested program can forge the output of this process. A second run makes that hard, but not impossible: it has one
more test, a canary, which must fail. It detects a program that ends the process early or makes every assertion pass.
For Python the host also knows the number of tests in advance.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import attrs

from hyperdomain_polyglot.languages import LANGUAGES, RUNNER
from hyperruntime.domain import Trial, TrialResult

_CANARY = "_canary"
_CANARY_LIVES = 3
_TWICE = (
    'cd "./$1" && shift || exit 2; '
    f'"$@"; code=$?; [ $code = 0 ] || exit $code; cp -R {_CANARY}/. . && rm -r {_CANARY} && ! "$@" || exit 3'
)


@attrs.frozen
class Suite:
    """Test files of one language.

    Attributes:
        language: a key of ``LANGUAGES``.
        tests: the test files, by path.
        files: the other files of the exercise, by path.
        folder: the name of their directory; C++ build files derive file names from it.
        timeout_s: the deadline of the trial, in seconds.
    """

    language: str
    tests: Mapping[str, bytes]
    files: Mapping[str, bytes]
    folder: str = "exercise"
    timeout_s: float = 120.0

    def trial(self, files: Mapping[str, str]) -> Trial:
        """Return the test command with the files of the answer and of the exercise; the exercise's files win."""
        language = LANGUAGES[self.language]
        tests = {name: language.enable(source) for name, source in self.tests.items()}
        beside: dict[str, str | bytes] = {**files, **self.files, **tests}
        if self.language == "python":
            beside[RUNNER] = (resources.files("hyperdomain_polyglot") / "runner.py").read_bytes()
            return Trial(args=(*language.command, *tests), files=beside, timeout_s=self.timeout_s)
        assert language.with_canary is not None
        first = next(iter(tests))
        beside[f"{_CANARY}/{first}"] = language.with_canary(tests[first])
        placed = {f"{self.folder}/{name}": content for name, content in beside.items()}
        args = ("sh", "-c", _TWICE, "tests", self.folder, *language.command)
        return Trial(args=args, files=placed, timeout_s=self.timeout_s)

    def count(self, result: TrialResult) -> tuple[int, int, str]:
        """Return the number of passed tests, the number of all tests and one sentence.

        If only the outcome of the whole test command is known, the tests count as one.
        """
        if self.language == "python":
            return self._count_python(result)
        if result.exit_code == 127:
            program = LANGUAGES[self.language].command[0]
            return 0, 1, f"the image has no toolchain for {self.language}: {program} is missing"
        if result.exit_code == _CANARY_LIVES:
            return 0, 1, "the hidden tests did not run to their end"
        passed = int(result.exit_code == 0 and not result.timed_out)
        return passed, 1, "the hidden tests pass" if passed else "the hidden tests do not pass"

    def _count_python(self, result: TrialResult) -> tuple[int, int, str]:
        methods = [method for source in self.tests.values() for method in _test_methods(source)]
        total = sum(not _is_skipped(method) for method in methods)
        said = _only_object(result.stdout) if result.exit_code == 0 and not result.timed_out else {}
        if said.get("canary") is not True or said.get("ran") != len(methods):
            return 0, total, "the hidden tests did not run to their end"
        passed = said.get("passed")
        passed = passed if type(passed) is int and 0 <= passed <= total else 0
        return passed, total, f"{passed} of {total} hidden tests pass"


def _test_methods(source: bytes) -> Iterator[ast.FunctionDef]:
    """Yield the test methods of a unittest file; of methods with one name in one class, only the last."""
    for kind in ast.parse(source).body:
        if isinstance(kind, ast.ClassDef):
            methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
            yield from (method for name, method in methods.items() if name.startswith("test"))


def _is_skipped(method: ast.FunctionDef) -> bool:
    """Return whether the exercise itself skips a test."""
    return any("skip" in ast.unparse(decorator) for decorator in method.decorator_list)


def _only_object(output: bytes) -> Mapping[str, Any]:
    """Return the JSON object that is the whole output, or an empty one: the runner prints exactly one."""
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
