"""The languages: for each, the test command, and how to enable all tests and to add a canary test.

Public exercises have most of their tests disabled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import attrs

RUNNER = "_runner.py"
_XTEST = re.compile(rb"\bx(test|it|describe)\(")
_DISABLED = re.compile(rb"@Disabled\([^)\n]*\)[ \t]*")
_RUST_IGNORE = re.compile(rb"^[ \t]*#\[ignore[^\n]*\n", re.MULTILINE)
_JAVA_CANARY = (
    b'\n    @org.junit.jupiter.api.Test\n    public void canaryMustFail() { throw new AssertionError("must fail"); }\n'
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
    """A language of exercises.

    Attributes:
        command: runs the tests in the directory of the program and the tests, without downloads.
        enable: returns a test file in which all tests are enabled.
        with_canary: returns a test file with one more test, the canary, which must fail for every program; None if the
            test runner itself adds it.
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
            with_canary=_then(b'test("canary must fail", () => { throw new Error("must fail"); });'),
        ),
        "java": Language(
            command=("gradle", "--offline", "test"),
            enable=lambda source: _DISABLED.sub(b"", source),
            with_canary=_into_last_class,
        ),
        "cpp": Language(
            command=("sh", "-c", "cmake -DEXERCISM_RUN_ALL_TESTS=1 -B _build . && cmake --build _build"),
            with_canary=_then(b'TEST_CASE("canary must fail") { REQUIRE(1 == 2); }'),
        ),
    }
)
