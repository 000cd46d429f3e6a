"""Find the tests that the ids of a row mean, as ids of pytest: ``path/of/file.py::Class::test``.

Public rows have what a test runner printed. SWE-bench's come from its log parsers: the id of pytest
up to its first space, ``test (module.Class)`` of unittest and Django, the first line of a test's
docstring, or the bare name of a function. Files of the repository are read as data; none of its
code is run.

Source: ``swebench/harness/log_parsers/python.py`` of SWE-bench; unittest,
``TextTestResult.getDescription``.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hyperenvironment_swe.items import SweItem
from hyperenvironment_swe.state import TreeFiles, patched_files, with_tests
from hyperruntime.errors import SpecError
from hyperruntime.rollout.repositories import Checkout

_UNITTEST = re.compile(r"(?P<method>\w+) \((?P<path>\w+(?:\.\w+)+)\)")
_TEST_FILE = re.compile(r"(?:.*/)?(?:test[^/]*|[^/]*_test|tests)\.py")
_RUNNER_OF_DJANGO = "runtests.py"
_SHOWN = 3
_FORMS = (
    "a test of the repository, as path/of/file.py::test, test (module.Class), or the first line "
    "of its docstring"
)


class _Test(NamedTuple):
    """A function in a test file: its id, its name, and the first line of its docstring."""

    id: str
    name: str
    summary: str


def locate_tests(item: SweItem, checkout: Checkout) -> Mapping[str, tuple[str, ...]]:
    """Return the tests that each id of an item means; an id that pytest knows means itself.

    Args:
        item: the problem.
        checkout: the base commit of the item.

    Raises:
        SpecError: an id means no test in the repository, or a test that neither pytest nor unittest
            can run.
        RepositoryError: the test patch of the item does not apply to its base.
    """
    ids = (*item.pass_to_pass, *item.fail_to_pass)
    with with_tests(item, checkout) as files:
        found = _Finder(files, patched_files(item.test_patch))
        located = {name: found.tests_of(name) for name in ids}
    if unknown := [name for name, tests in located.items() if not tests]:
        some = ", ".join(map(repr, unknown[:_SHOWN]))
        raise SpecError(
            f"tests of item {item.id}", f"{some} ({len(unknown)} of {len(located)} ids)", _FORMS
        )
    if item.runner == "unittest" and (
        odd := [t for ts in located.values() for t in ts if t.count("::") != 2]
    ):
        raise SpecError(
            f"tests of item {item.id}",
            odd[0],
            "path/of/file.py::Class::method with the runner unittest",
        )
    _refuse_django(item, located, files)
    return located


def is_cut(name: str) -> bool:
    """Return whether an id of pytest is cut at a space in its parameters, so that it means all
    tests that begin so.
    """
    return "::" in name and name.count("[") > name.count("]") and not name.endswith("]")


def _refuse_django(item: SweItem, located: Mapping[str, tuple[str, ...]], files: TreeFiles) -> None:
    """Refuse tests of Django itself, which need the settings and databases that its own runner
    makes.
    """
    for name, tests in located.items():
        folder = tests[0].partition("::")[0]
        while "::" not in name and (folder := posixpath.dirname(folder)):
            if f"{folder}/{_RUNNER_OF_DJANGO}" in files.paths:
                allowed = (
                    "tests that pytest or unittest can run; this one needs "
                    f"{folder}/{_RUNNER_OF_DJANGO}"
                )
                raise SpecError(
                    f"tests of item {item.id}", name, f"{allowed}, so leave out such rows"
                )


class _Finder:
    """The tests in the files of a repository."""

    def __init__(self, files: TreeFiles, patched: Sequence[str]) -> None:
        self._files = files
        self._parsed: dict[str, list[_Test]] = {}
        tests = [path for path in files.paths if _TEST_FILE.fullmatch(path)]
        self._wanted = [
            path for path in patched if path in files.paths and path.endswith(".py")
        ] or tests

    def tests_of(self, name: str) -> tuple[str, ...]:
        """Return the tests that an id means."""
        if "::" in name:
            return (name,) if name.partition("::")[0] in self._files.paths else ()
        if match := _UNITTEST.fullmatch(name):
            return self._of_unittest(match["method"], match["path"])
        tests = [test for path in self._wanted for test in self._tests(path)]
        return tuple(test.id for test in tests if name in (test.name, test.summary))

    def _of_unittest(self, method: str, dotted: str) -> tuple[str, ...]:
        """Return the test of a method; since Python 3.11, unittest prints its name after that of
        the class, too.
        """
        module, _, case = dotted.removesuffix(f".{method}").rpartition(".")
        ends = [f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
        paths = [
            path
            for path in self._files.paths
            if any(path == end or path.endswith(f"/{end}") for end in ends)
        ]
        paths = [
            path
            for path in paths
            if re.search(rf"\b{case}\b".encode(), self._files.read(path) or b"")
        ]
        paths = [path for path in paths if path in self._wanted] or paths
        return (f"{paths[0]}::{case}::{method}",) if len(paths) == 1 else ()

    def _tests(self, path: str) -> list[_Test]:
        if path not in self._parsed:
            try:
                self._parsed[path] = list(
                    _functions(path, ast.parse(self._files.read(path) or b""))
                )
            except (SyntaxError, ValueError, RecursionError):
                self._parsed[path] = []
        return self._parsed[path]


def _functions(prefix: str, node: ast.Module | ast.ClassDef) -> Iterator[_Test]:
    """Yield the functions of a file and the methods of its classes."""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef):
            yield from _functions(f"{prefix}::{inner.name}", inner)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (ast.get_docstring(inner) or "").strip().split("\n")
            yield _Test(f"{prefix}::{inner.name}", inner.name, lines[0].strip())
