"""Run unittest files inside a container twice: unchanged, and with a canary test that must fail.
Standard library only.

The second run detects a program that ends the process or makes every assertion pass. The output is
one JSON line: ``{"ran", "passed", "canary"}``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import unittest
from typing import Any

_CANARY = "--canary"


class Canary(unittest.TestCase):
    """A test that must fail for every program."""

    def test_that_fails(self) -> None:
        """Assert something false."""
        self.assertEqual([1, "a"], [1, "b"])  # noqa: PT009 - a program may have replaced this method


def main(arguments: list[str]) -> None:
    """Do both runs, each in its own process, and print the result."""
    plain = run(arguments)
    canary = run([_CANARY, *arguments])
    ran = plain.get("ran")
    caught = type(ran) is int and canary.get("ran") == ran + 1 and canary.get("canary") == "failed"
    print(json.dumps({"ran": ran, "passed": plain.get("passed"), "canary": caught}))


def run(arguments: list[str]) -> dict[str, object]:
    """Return the output of one run in a child process; empty if it is not valid."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writable, 1)
            one(arguments)
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as file:
        output = file.read()
    os.waitpid(child, 0)
    try:
        said = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return said if isinstance(said, dict) else {}


def name(test: unittest.TestCase) -> str:
    """Return the name of a test, also for a part of it."""
    return test.id().split(" (")[0]


class Result(unittest.TextTestResult):
    """Counts skipped tests too; ``testsRun`` of Python 3.12.1 does not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as unittest passes them on
        super().__init__(*args, **kwargs)
        self.skipped_before_start = 0
        self._is_running = False

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Note that a test begins."""
        self._is_running = True
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Note that a test has ended."""
        self._is_running = False
        super().stopTest(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Count a skipped test that did not begin; a skipped class is no test."""
        is_test = isinstance(test, unittest.TestCase)
        if is_test and not self._is_running:
            self.skipped_before_start += 1
        super().addSkip(test, reason)


def one(arguments: list[str]) -> None:
    """Run the tests of some files in this process and print the numbers of run and passed tests."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    suite = unittest.TestSuite()
    with_canary = arguments[0] == _CANARY
    for path in arguments[with_canary:]:
        spec = importlib.util.spec_from_file_location(
            os.path.splitext(os.path.basename(path))[0], path
        )
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    if with_canary:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(Canary))
    result = unittest.TextTestRunner(stream=sys.stderr, resultclass=Result).run(suite)
    assert isinstance(result, Result)
    bad = {name(test) for test, _ in (*result.failures, *result.errors, *result.skipped)}
    failed = any(isinstance(test, Canary) for test, _ in result.failures)
    ran = result.testsRun + result.skipped_before_start
    said = {"ran": ran, "passed": ran - len(bad), "canary": "failed" if failed else "passed"}
    output.write("\n" + json.dumps(said) + "\n")
    output.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
