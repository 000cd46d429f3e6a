"""The rules of ``.gitignore`` files decide as git does, and in bounded time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.errors import PatchError
from hyperruntime.git.ignore_rules import Glob, IgnoreRules
from tests.machine.git.plain_git import CALM

PIECES = (
    "a", "b", "/", "*", "**", "**/", "/**", "***/", "?", "a*", "*b", "\\a", "\\*", "\\/", "\\", "\\ ", " ", "!", "#",
    "[ab]", "[!a]", "[^/]", "[/]", "[a-b]", "[]a]", "[a-]", "[--b]", "[\\a-b]", "[[:alpha:]]", "[[:x:]]", "[[:]a]",
    "[", "]", "-", "[a",
)  # fmt: skip
NAMES = ("a", "b", "ab", "aab", "c", "*", "a b", " a", "a ", "[a", "-", "!a", "#a", "\\a")
lines = st.builds(
    lambda *parts: "".join((parts[0], *parts[1], parts[2])),
    st.sampled_from(("", "", "!")),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    st.sampled_from(("", "", "/", " ", "\r")),
)
files = st.dictionaries(
    st.sampled_from(("", "a", "a/b")),
    st.lists(lines, min_size=1, max_size=3).map("\n".join),
    min_size=1,
)
paths = st.lists(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=5).map("/".join), min_size=20, max_size=40
)


def ignored_by_git(contents: Mapping[str, str], asked: Sequence[str]) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], env=CALM, check=True)
        for directory, content in contents.items():
            Path(folder, directory).mkdir(parents=True, exist_ok=True)
            Path(folder, directory, ".gitignore").write_bytes(content.encode())
        command = ["git", "-C", folder, "check-ignore", "--no-index", "-z", "--stdin"]
        text = "".join(f"./{path}\0" for path in asked).encode()
        found = subprocess.run(command, input=text, env=CALM, capture_output=True, check=False)
        return {path.decode().removeprefix("./") for path in found.stdout.split(b"\0")[:-1]}


def ignored_by_us(contents: Mapping[str, str], asked: Sequence[str]) -> set[str]:
    rules = IgnoreRules(
        {directory.encode(): content.encode() for directory, content in contents.items()}
    )
    return {path.decode() for path in rules.ignored([path.encode() for path in asked])}


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(files, paths)
def test_any_rules_ignore_the_paths_that_git_ignores(
    contents: dict[str, str], asked: list[str]
) -> None:
    outside = [path for path in asked if path not in ("a/b",)]  # a directory that has a file
    assert ignored_by_us(contents, outside) == ignored_by_git(contents, outside)


def test_usual_rules_ignore_the_paths_that_git_ignores() -> None:
    contents = {
        "": "# build\nbuild/\n*.py[cod]\n/dist\n.venv*/\n!keep.pyc\ndocs/**/out\n"
        "**/cache/**\nlogs/*.log\n\\#x\nend\\ \n",
        "a": "!/dist\nlocal\n*.log\n!b.log\r\n",
    }
    asked = [
        "build/x", "a/build/x", "build.py", "m.pyc", "keep.pyc", "dist", "a/dist", "b/dist", ".venv3/bin/x", "docs/out",
        "docs/a/b/out", "x/cache/y", "cache", "logs/a.log", "logs/a/b.log", "#x", "end ", "end", "a/local", "local",
        "a/x.log", "a/b.log", "build/keep.pyc",
    ]  # fmt: skip
    found = ignored_by_us(contents, asked)
    assert found == ignored_by_git(contents, asked)
    assert {"build/x", "m.pyc", "x/cache/y", "end ", "a/local"} <= found
    assert not {"keep.pyc", "a/b.log", "logs/a/b.log", "local"} & found


SLOW = {
    "directories": ("**/a/" * 40 + "x", "a/" * 90 + "f"),
    "stars": ("*a" * 60 + "b", "a" * 255),
    "stars in directories": ("/" + "*a" * 60 + "/**/**b", "/".join(["a" * 200] * 5)),
    "alternating": ("**/*a/" * 30 + "b", "aaa/" * 90 + "f"),
}


@pytest.mark.parametrize(("pattern", "path"), SLOW.values(), ids=SLOW.keys())
def test_a_pattern_for_which_git_needs_exponential_time_is_decided(pattern: str, path: str) -> None:
    assert ignored_by_us({"": pattern + "\n"}, [path]) == set()
    assert ignored_by_us({"": pattern[:-1] + "*\n"}, [path]) == {path}


def test_too_many_rules_for_many_paths_raise_an_error() -> None:
    rules = IgnoreRules({b"": b"*a?\n" * 1000}, max_steps=100_000)
    assert rules.ignored([b"x"]) == set()
    with pytest.raises(PatchError, match="too many rules"):
        rules.ignored([b"a file %d" % number for number in range(100)])


def test_a_pattern_longer_than_any_path_has_no_effect() -> None:
    assert ignored_by_us({"": "?" * 5000 + "\nx\n"}, ["x", "y"]) == {"x"}


def test_files_that_would_take_gigabytes_of_memory_are_refused_unread() -> None:
    with pytest.raises(PatchError, match="more than 262144"):
        IgnoreRules({b"": b"a*b\n" * (10 * 1024 * 1024 // 4)})
    with pytest.raises(PatchError, match="more than 262144"):
        IgnoreRules({b"%d" % number: b"a*b\n" * 1000 for number in range(100)})


def test_many_rules_for_one_path_are_given_up_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def matches(_: object, text: bytes) -> bool:
        compared.append(text)
        return False

    rules = IgnoreRules({b"": b"*a?\n" * 1000}, max_steps=10_000)
    monkeypatch.setattr(Glob, "matches", matches)
    with pytest.raises(PatchError, match="too many rules"):
        rules.ignored([b"x" * 200])
    assert 0 < len(compared) < 100
