"""The rules for paths and links of a change."""

from __future__ import annotations

import pytest

from hyperruntime.git.change_rules import (
    Change,
    effective_changes,
    escape_problem,
    link_problem,
)

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
