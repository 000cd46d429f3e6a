"""Test a program by test files, as public exercises have them; they run in the program's own
process.

The tested program can forge the output of this process. A second run makes that hard, but not
impossible: it has one more test, a canary, which must fail. It detects a program that ends the
process early or makes every assertion pass. For Python the host also knows the number of tests in
advance.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from types import MappingProxyType

import attrs

from hyperruntime.domain import Trial, TrialResult
from hyperruntime.json_values import json_object

RUNNER = "_runner.py"
_XTEST = re.compile(rb"\bx(test|it|describe)\(")
_DISABLED = re.compile(rb"@Disabled\([^)\n]*\)[ \t]*")
_RUST_IGNORE = re.compile(rb"^[ \t]*#\[ignore[^\n]*\n", re.MULTILINE)
_JAVA_CANARY = (
    b"\n    @org.junit.jupiter.api.Test\n"
    b'    public void canaryMustFail() { throw new AssertionError("must fail"); }\n'
)
_CANARY = "_canary"
_CANARY_LIVES = 3
_TWICE = (
    'cd "./$1" && shift || exit 2; "$@"; code=$?; [ $code = 0 ] || exit $code; cp -R '
    f'{_CANARY}/. . && rm -r {_CANARY} && ! "$@" || exit 3'
)


def _same(source: bytes) -> bytes:
    return source


def _then(addition: bytes) -> Callable[[bytes], bytes]:
    return lambda source: source + b"\n" + addition + b"\n"


def _into_last_class(source: bytes) -> bytes:
    before, brace, after = source.rpartition(b"}")
    return before + _JAVA_CANARY + brace + after


@attrs.frozen(kw_only=True)
class Language:
    """A language of exercises; the public ones have most of their tests disabled.

    Attributes:
        command: runs the tests in the directory of the program and the tests, without downloads.
        enable: returns a test file in which all tests are enabled.
        with_canary: returns a test file with one more test, the canary, which must fail for every
            program; None if the test runner itself adds it.
    """

    command: tuple[str, ...]
    enable: Callable[[bytes], bytes] = _same
    with_canary: Callable[[bytes], bytes] | None = None


LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        "python": Language(command=("python3", "-B", RUNNER)),
        "go": Language(
            command=("go", "test", "./..."),
            with_canary=_then(b'func TestCanaryMustFail(t *testing.T) { t.Fatal("must fail") }'),
        ),
        "rust": Language(
            command=("cargo", "test", "--offline"),
            enable=lambda source: _RUST_IGNORE.sub(b"", source),
            with_canary=_then(b'#[test]\nfn canary_must_fail() { panic!("must fail") }'),
        ),
        "javascript": Language(
            command=("npx", "--no-install", "jest"),
            enable=lambda source: _XTEST.sub(rb"\1(", source),
            with_canary=_then(
                b'test("canary must fail", () => { throw new Error("must fail"); });'
            ),
        ),
        "java": Language(
            command=("gradle", "--offline", "test"),
            enable=lambda source: _DISABLED.sub(b"", source),
            with_canary=_into_last_class,
        ),
        "cpp": Language(
            command=(
                "sh",
                "-c",
                "cmake -DEXERCISM_RUN_ALL_TESTS=1 -B _build . && cmake --build _build",
            ),
            with_canary=_then(b'TEST_CASE("canary must fail") { REQUIRE(1 == 2); }'),
        ),
    }
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
        """Return the test command with the files of the answer and of the exercise; the exercise's
        files win.
        """
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
        said = (
            json_object(result.stdout) if result.exit_code == 0 and not result.timed_out else None
        )
        if said is None or said.get("canary") is not True or said.get("ran") != len(methods):
            return 0, total, "the hidden tests did not run to their end"
        passed = said.get("passed")
        passed = passed if type(passed) is int and 0 <= passed <= total else 0
        return passed, total, f"{passed} of {total} hidden tests pass"


def _test_methods(source: bytes) -> Iterator[ast.FunctionDef]:
    """Yield the test methods of a unittest file; of methods with one name in one class, only the
    last.
    """
    for kind in ast.parse(source).body:
        if isinstance(kind, ast.ClassDef):
            methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
            yield from (method for name, method in methods.items() if name.startswith("test"))


def _is_skipped(method: ast.FunctionDef) -> bool:
    """Return whether the exercise itself skips a test."""
    return any("skip" in ast.unparse(decorator) for decorator in method.decorator_list)
