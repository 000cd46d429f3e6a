"""Diffs are parsed as git parses them, and filtered by the rules."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import (
    Change,
    ChangeRules,
    effective_changes,
    escape_problem,
    link_problem,
)
from hyperruntime.git.patch import MAX_PATCH_BYTES, filter_patch, parse_patch

HUNK = b"@@ -1 +1 @@\n-old\n+new\n"
TEXT = b"diff --git a/t.py b/t.py\nindex 1..2 100644\n--- a/t.py\n+++ b/t.py\n" + HUNK
BINARY = b"diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 3\nKcmZ\n\nliteral 2\nJcmZ\n\n"


def delta(result_size: int) -> bytes:
    """Return a binary part whose delta states this size of the result."""
    sizes = bytearray([3])
    while result_size > 127:
        sizes.append(128 | (result_size & 127))
        result_size >>= 7
    data = zlib.compress(bytes(sizes) + bytes([result_size]) + b"\x91\0\x01")
    return (
        b"diff --git a/b b/b\nGIT binary patch\ndelta 5\nU"
        + base64.b85encode(data, pad=True)
        + b"\n\n"
    )


NAMES = {
    "text": (TEXT, [(b"t.py",)]),
    "two parts and a message": (b"From: me\n\n---\n" + TEXT + BINARY, [(b"t.py",), (b"b",)]),
    "plain with times": (b"--- a/x y\t2024-01-01\n+++ b/x y\t2024-01-02\n" + HUNK, [(b"x y",)]),
    "new": (
        b"diff --git a/n b/n\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/n\n" + HUNK,
        [(b"n",)],
    ),
    "mode only": (b"diff --git a/a b/c b/a b/c\nold mode 100644\nnew mode 100755\n", [(b"a b/c",)]),
    "quoted": (
        b'diff --git "a/\\303\\251\\n\\"" "b/\\303\\251\\n\\""\nnew file mode 100644\n',
        [('é\n"'.encode(),)],
    ),
    "half quoted": (b'diff --git a/x "b/\\t"\nrename from x\nrename to "\\t"\n', [(b"\t", b"x")]),
    "no prefix": (b"--- t.py\n+++ t.py\n" + HUNK, [(b"t.py",)]),
    "absolute": (b"--- a//etc/x\n+++ /etc/y\n" + HUNK, [(b"/etc/x", b"/etc/y")]),
    "headers in a body": (
        TEXT.replace(HUNK, b"@@ -1,2 +1,3 @@\n--- a/evil\n+++ b/evil\n+@@ -1 +1 @@\n context\n")
        + BINARY,
        [(b"t.py",), (b"b",)],
    ),
    "no newline at the end": (
        TEXT.replace(
            HUNK,
            b"@@ -1 +1 @@\n-o\n\\ No newline at end of file\n+n\n\\ No newline at end of file\n",
        )
        + TEXT,
        [(b"t.py",), (b"t.py",)],
    ),
    "CRLF": (
        TEXT.replace(HUNK, HUNK.replace(b"\n", b"\r\n").replace(b"@@\r", b"@@")),
        [(b"t.py",)],
    ),
    "nothing": (b" \n", []),
}


@pytest.mark.parametrize(("patch", "names"), NAMES.values(), ids=NAMES.keys())
def test_names_are_parsed_as_git_parses_them(patch: bytes, names: list[tuple[bytes, ...]]) -> None:
    parts = parse_patch(patch)
    assert [tuple(sorted(part.names)) for part in parts] == names
    assert patch.endswith(b"".join(part.text for part in parts))


def test_an_entry_with_a_marker_names_a_file_and_any_other_one_a_path() -> None:
    both = "p/prog.py#M", "**/prog.py#N-1"
    for spelt in ("p/prog.py#M", "./p/prog.py#M", "/p/prog.py#M", "p//prog.py#M"):
        assert ChangeRules(protected=(spelt,)).markers(b"p/prog.py") == (b"M",)
    assert ChangeRules(protected=both).markers(b"p/prog.py") == (b"M", b"N-1")
    assert ChangeRules(protected=both).markers(b"other.py") == ()
    assert ChangeRules(protected=both).problem(b"p/prog.py") == ""
    for path, name in ((b"C#/x", "C#/"), (b"a/#secret", "**/#secret"), (b"a#", "a#")):
        rules = ChangeRules(protected=(name,))
        assert rules.problem(path) == f"{name} is protected"
        assert rules.markers(path) == ()


def test_protected_and_too_large_parts_are_left_out_and_named() -> None:
    renamed = b"diff --git a/safe/x b/y\nsimilarity index 100%\nrename from safe/x\nrename to y\n"
    compiled = (
        TEXT.replace(b"t.py", b"d/__pycache__/t.pyc").replace(HUNK, b"") + b"Binary files differ\n"
    )
    rules = ChangeRules(protected=("safe/", "run.toml"), max_file_bytes=1000)
    protected = TEXT.replace(b"t.py", b"run.toml")
    kept, dropped = filter_patch(
        renamed + TEXT + compiled + protected + delta(1001) + BINARY, rules
    )
    assert kept == TEXT + BINARY
    assert dropped == (
        ("safe/x", "safe/ is protected"),
        ("d/__pycache__/t.pyc", "bytecode"),
        ("run.toml", "run.toml is protected"),
        ("b", "its 1001 bytes are more than 1000 (max_file_bytes)"),
    )


def test_a_too_large_diff_and_text_that_is_not_a_diff_are_rejected() -> None:
    with pytest.raises(PatchError, match="in all"):
        filter_patch(delta(1 << 28) * 2, ChangeRules(max_file_bytes=1 << 40))
    with pytest.raises(PatchError, match="at most"):
        parse_patch(bytes(MAX_PATCH_BYTES + 1))
    with pytest.raises(PatchError, match="not a diff"):
        parse_patch(b"I have fixed it.\n")


ESCAPES = [
    b"/x",
    b"../x",
    b"a/../x",
    b"a//x",
    b"./x",
    b"",
    b"a/",
    b".git",
    b"a/.GIT/x",
    b".git ",
    b".git...",
    b"git~1",
]
ESCAPES += [b".git:x", b"a\\.git\\x", b"nul\0", b"p" * 1025]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_path_that_git_would_reject_is_rejected(path: bytes) -> None:
    assert escape_problem(path)


@pytest.mark.parametrize(
    "path", [b"a", b".gitignore", b".github/x", b"a/git", b"..a", b"a..", b"-x", b"\xff", b"a\\b"]
)
def test_an_unusual_path_inside_the_repository_is_accepted(path: bytes) -> None:
    assert not escape_problem(path)


def test_links_must_stay_inside_the_repository() -> None:
    for path, target in (
        (b"a", b"b"),
        (b"d/a", b"../b"),
        (b"d/e/a", b"../../x/y"),
        (b"a", b"./b/"),
    ):
        assert not link_problem(path, target)
    for path, target in (
        (b"a", b".."),
        (b"d/a", b"../../b"),
        (b"a", b"/b"),
        (b"a", b"b/../../c"),
        (b"a", b""),
    ):
        assert link_problem(path, target)
    for path, target in ((b"a", b".git/config"), (b".gitmodules", b"a")):
        assert link_problem(path, target)


def test_changes_that_conflict_with_dropped_paths_are_dropped() -> None:
    dropped = {b"p/x": "protected", b"f": "protected"}
    changes = [
        Change(b"p", b"100644"),
        Change(b"p/x", b"000000"),
        Change(b"p/y", b"000000"),
        Change(b"f/new", b"100644"),
    ]
    changes += [Change(b"z", b"100644"), Change(b"a/b", b"100644"), Change(b"a", b"000000")]
    assert [change.path for change in effective_changes(changes, dropped)] == [b"a", b"a/b", b"z"]
    assert dropped.keys() == {b"p/x", b"f", b"p", b"f/new"}


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [
                TEXT,
                BINARY,
                HUNK,
                b"--- a/x\n",
                b"+++ b/y\n",
                b"GIT binary patch\n",
                b'"',
                b"\r\n",
                b"@@ -9",
            ]
        )
    )
)
def test_the_parser_accepts_or_rejects_any_text_and_loses_no_byte(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    try:
        parts = parse_patch(text)
    except PatchError:
        return
    rebuilt = b"".join(part.text for part in parts)
    assert (text if text.endswith(b"\n") or not parts else text + b"\n").endswith(rebuilt)
