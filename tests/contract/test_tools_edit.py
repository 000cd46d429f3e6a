"""The tools edit_file, patch and search, in a real container."""

from __future__ import annotations

import pytest

import hyperruntime as hr
from tests.contract.toolplace import Desk, make_desk

pytestmark = pytest.mark.engine

PROGRAM = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


@pytest.fixture
def desk(container: hr.Container) -> Desk:
    desk = make_desk(container)
    desk("write_file", path="src/a b.py", content=PROGRAM)
    return desk


def test_one_match_is_replaced_and_the_mode_is_kept(desk: Desk) -> None:
    desk.sh("chmod 755 'src/a b.py'")

    result = desk(
        "edit_file",
        path="src/a b.py",
        old="def g():\n    return 1",
        new="def g():\n    return '$(id)'",
    )

    assert result.output == "src/a b.py is changed at line 5"
    assert desk.sh("tail -1 'src/a b.py'; stat -c %a 'src/a b.py'") == "    return '$(id)'\n755\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"old": "return 1", "new": "x"}, "several times, at lines 2, 6;"),
        ({"old": "return 2", "new": "x"}, "is not in"),
        ({"old": "return  1", "new": "x"}, "other blanks"),
        ({"old": "", "new": "x"}, "'old' is empty"),
        ({"old": "def f", "new": "def f"}, "nothing would change"),
        ({"new": "x"}, "give either"),
        ({"old": "a", "new": "b", "patch": "c"}, "give either"),
        ({"patch": "nonsense"}, "not a unified diff"),
        ({"patch": "@@ -1 +1 @@\n-def h():\n+x\n"}, "does not fit"),
        ({"patch": "@@ -4 +4 @@\n-    return 1\n+x\n"}, "fits at lines 2, 6"),
    ],
)
def test_an_ambiguous_or_invalid_edit_changes_nothing_and_is_explained(
    desk: Desk, args: dict[str, str], words: str
) -> None:
    result = desk("edit_file", path="src/a b.py", **args)

    assert not result.success
    assert words in result.error
    assert desk.sh("cat 'src/a b.py'") == PROGRAM


def test_an_edit_can_replace_all_matches_or_apply_a_diff(desk: Desk) -> None:
    assert desk(
        "edit_file", path="src/a b.py", old="return 1", new="return 2", replace_all=True
    ).success
    diff = "@@ -50,2 +50,3 @@\n def g():\n-    return 2\n+    # é\n+    return 3\n"
    assert desk("edit_file", path="src/a b.py", patch=diff).error == ""
    assert desk.sh("cat 'src/a b.py'") == PROGRAM.replace("1", "2", 1).replace(
        "return 1", "# é\n    return 3"
    )


def test_a_diff_of_several_files_is_applied_as_a_whole_or_not_at_all(desk: Desk) -> None:
    new = "--- /dev/null\n+++ b/new/n\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
    change = "--- a/src/a b.py\n+++ b/src/a b.py\n@@ -1 +1 @@\n-def {}():\n+def h():\n"

    refused = desk("patch", patch=new + change.format("zzz"))
    applied = desk("patch", patch=new + change.format("f"))
    again = desk("patch", patch=new)
    removed = desk(
        "patch", patch="--- a/n\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", workdir="new"
    )

    assert "does not fit" in refused.error
    assert applied.output == "new/n is created\nsrc/a b.py is changed"
    assert "already exists" in again.error
    assert removed.output == "new/n is removed"
    assert desk.sh("find . -type f; head -1 src/*") == "./src/a b.py\ndef h():\n"


def test_a_diff_is_undone_if_its_last_file_cannot_be_written(desk: Desk) -> None:
    change = "--- a/src/a b.py\n+++ b/src/a b.py\n@@ -1 +1 @@\n-def f():\n+def h():\n"
    new = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+one\n"

    result = desk("patch", patch=new.format("new") + change + new.format("src/a b.py/below a file"))

    assert "nothing was changed: 'src/a b.py/below a file' could not be written" in result.error
    assert desk.sh("find . -type f; cat src/*") == f"./src/a b.py\n{PROGRAM}"


def test_a_diff_that_cannot_be_written_removes_its_new_directories(desk: Desk) -> None:
    new = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+one\n"
    desk.sh("mkdir there; ln -s there link")

    names = ("d e/f/one", "d e/two", "link/g/three", "there/four", f"h/i/{'x' * 300}")
    result = desk("patch", patch="".join(map(new.format, names)))

    assert "nothing was changed: 'h/i/xxx" in result.error
    assert desk.sh("find . | sort") == ".\n./link\n./src\n./src/a b.py\n./there\n"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "out/x"])
def test_a_diff_cannot_change_files_outside_the_workspace(desk: Desk, path: str) -> None:
    desk.sh("ln -s .. out")

    for form in (
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n",
        f"--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
    ):
        assert "outside the workspace" in desk("patch", patch=form).error


def test_a_diff_of_git_is_applied_exactly(desk: Desk) -> None:
    desk.sh("git init -q . && git add -A && git -c user.name=n -c user.email=e commit -qm one")
    desk.sh("seq 30 > src/n; git add -A; git -c user.name=n -c user.email=e commit -qm two")
    desk.sh(
        "printf 'old\\n' > 'src/ü\"q\\t.txt'; git add -A; git -c user.name=n -c user.email=e "
        "commit -qm quoted"
    )
    desk.sh(
        "sed -i -e '3d;7s/$/ x/;29a new' src/n; echo more > 'src/o p'; rm 'src/a b.py'; echo "
        "new > src/中"
    )
    desk.sh('for name in src/ü*; do echo more >> "$name"; done; git add -A')
    diff = desk.sh(
        "git diff --cached --no-renames > ../diff; cp -r src ../wanted; git reset -q --hard; "
        "cat ../diff"
    )

    assert '"b/src/\\344\\270\\255"' in diff  # as git quotes names
    assert desk("patch", patch=diff).error == ""
    assert desk.sh("diff -r src ../wanted && echo same") == "same\n"


def test_a_search_returns_lines_with_their_files(desk: Desk) -> None:
    desk("write_file", path="x\ny.txt", content="a return 7 here\nno\n")
    desk("write_file", path=".git/c", content="return 1\n")
    desk("write_file", path="binary", content="cmV0dXJuIDEAcmV0dXJuIDEK", encoding="base64")

    assert desk("search", pattern=r"return \d").output == (
        "src/a b.py:2:    return 1\nsrc/a b.py:6:    return 1\nx\\ny.txt:1:a return 7 here"
    )
    assert (
        desk("search", pattern="RETURN 1", ignore_case=True, glob="*.py").metadata["matches"] == 2
    )
    assert desk("search", pattern="return", glob="*.txt").output == "x\\ny.txt:1:a return 7 here"
    assert desk("search", pattern="return", glob="*.txt", hidden=True).metadata["matches"] == 1
    both = desk("search", pattern="return", glob="{*.{py,sh},x*.t?t}")
    assert (
        both.output
        == "src/a b.py:2:    return 1\nsrc/a b.py:6:    return 1\nx\\ny.txt:1:a return 7 here"
    )
    assert "more than 64 patterns" in desk("search", pattern="a", glob="{a,b,c}" * 4).error
    assert desk("search", pattern="return 7", context=1).output.endswith(
        ":a return 7 here\nx\\ny.txt-2-no"
    )
    assert (
        desk("search", pattern="f()", literal=True, path="src/a b.py").output
        == "src/a b.py:1:def f():"
    )
    assert desk("search", pattern="return", hidden=True, path=".git").output == ".git/c:1:return 1"
    assert desk("search", pattern="nowhere").output == "(no line matches)"
    assert desk("search", pattern="-v").success


def test_a_search_reports_too_many_matches_and_invalid_patterns(desk: Desk) -> None:
    desk.sh("yes match | head -c 50000000 > many; printf 'long %060000000d\\nlong b\\n' 1 > long")

    capped = desk("search", pattern="match", max_results=3)
    long = desk("search", pattern="long")

    assert (capped.metadata["matches"], capped.truncated) == (3, True)
    assert "only the first 3 matches" in capped.output
    assert (long.metadata["matches"], len(long.output) < 600) == (2, True)
    for pattern in ("(", "[a", "a{2,1}", "(?=x)", "a\nb", "x\\n", ""):
        assert not desk("search", pattern=pattern).success, pattern
