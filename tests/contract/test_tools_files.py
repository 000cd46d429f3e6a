"""The tools read_file, write_file and list_files, in a real container."""

from __future__ import annotations

import base64
import hashlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hyperruntime as hr
from tests.contract.toolplace import Desk, make_desk

pytestmark = pytest.mark.engine

HOSTILE = (
    "a b",
    "a;b",
    "$(id)",
    "-rf",
    "--",
    "'",
    '"',
    "a\nb",
    "\n",
    "*",
    "~",
    "x\\",
    "é",
    "\udcff\udc81",
    ".x",
    "..x",
    "=",
)
_PART = st.sampled_from(HOSTILE) | st.binary(min_size=1, max_size=20).map(os.fsdecode)
_NAMES = st.lists(
    _PART.filter(lambda p: not set(p) & {"/", "\0"} and p not in (".", "..")),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def desk(container: hr.Container) -> Desk:
    return make_desk(container)


@given(parts=_NAMES, content=st.binary(max_size=200))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_files_can_have_any_name_and_any_content(
    desk: Desk, parts: list[str], content: bytes
) -> None:
    """W7: the public system executed parts of such names, or wrote to another file."""
    desk.sh("cd ..; rm -rf 'the workspace'; mkdir 'the workspace'")
    path = "/".join(parts)

    written = desk(
        "write_file", path=path, content=base64.b64encode(content).decode(), encoding="base64"
    )
    read = desk("read_file", path=path, encoding="base64")

    assert written.error == ""
    assert base64.b64decode(read.stdout) == content
    assert (
        read.metadata["sha256"] == hashlib.sha256(content).hexdigest() == written.metadata["sha256"]
    )
    assert os.fsencode(desk.sh("find . -type f -printf '%P'")) == os.fsencode(path)
    assert len(desk("list_files", recursive=True, hidden=True).metadata["entries"]) == len(parts)


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "link", "d/../../secret", "to/secret", "x/../../secret"]
)
def test_paths_out_of_the_workspace_are_refused(container: hr.Container, path: str) -> None:
    """W7, R17: paths are resolved in the container, so links are followed as the kernel does."""
    desk = make_desk(container)
    desk.sh("echo s > ../secret; mkdir d; ln -s ../secret link; ln -s .. to; ln -s / root")

    results = [
        desk("read_file", path=path),
        desk("write_file", path=path, content="forged"),
        desk("edit_file", path=path, old="s", new="forged"),
        desk("read_artifact", path=path),
        desk("search", path=path, pattern="s"),
        desk("archive_artifacts", path=path),
        desk(
            "list_files",
            path=os.path.dirname(path) + "/.." if path.startswith("d") else f"{path}/..",
        ),
    ]

    assert [result.success for result in results] == [False] * len(results)
    reasons = {result.error.split("'")[2] for result in results}
    assert all(
        "is outside the workspace" in reason or "does not exist" in reason for reason in reasons
    ), reasons
    assert "outside the workspace" in results[0].error or path.startswith("x")
    assert desk.sh("cat ../secret") == "s\n"


def test_links_and_dots_that_stay_inside_are_followed(container: hr.Container) -> None:
    desk = make_desk(container)
    desk.sh(
        "mkdir -p a/b; echo one > a/f; ln -s a/b deep; ln -s ../f a/b/up; ln -s new-one dangling"
    )

    assert desk("read_file", path="deep/../f").stdout == "one\n"
    assert desk("read_file", path="./a//b/./up").stdout == "one\n"
    assert desk("read_file", path=f"{desk.slot_exec.workspace}/a/f").stdout == "one\n"
    assert desk("write_file", path="dangling", content="x").success
    assert desk.sh("cat new-one; readlink dangling") == "xnew-one\n"


def test_the_policy_can_allow_more_roots(container: hr.Container) -> None:
    desk = make_desk(container, read_roots=("/etc",), file_roots=("/var/tmp",))

    assert "root:" in desk("read_file", path="/etc/passwd").stdout
    assert "outside" in desk("write_file", path="/etc/passwd", content="x").error
    assert desk("write_file", path=f"/var/tmp/{desk.slot_exec.slot_id}/f", content="x").success
    assert "outside" in desk("read_file", path="/proc/version").error


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("mkfifo f", "give a regular file"),
        ("mkdir f", "is a directory"),
        ("ln -s /dev/zero f", "outside the workspace"),
        ("ln -s f f", "too many symbolic links"),
        ("true", "does not exist"),
        ("touch g; mkdir h; ln -s g/x f", "does not exist"),
    ],
)
def test_a_path_that_is_not_a_regular_file_is_refused_at_once(
    container: hr.Container, make: str, words: str
) -> None:
    desk = make_desk(container)
    desk.sh(make)

    for tool, more in (
        ("read_file", {}),
        ("read_artifact", {}),
        ("edit_file", {"old": "a", "new": "b"}),
    ):
        result = desk(tool, path="f", **more)
        assert not result.success
        assert words in result.error
        assert result.duration_s < 60


@pytest.mark.slow
def test_a_file_of_100_mib_is_written_and_read(desk: Desk) -> None:
    """W7: the public system failed above 128 KiB."""
    content = "0123456789abcde\n" * (100 * 1024 * 1024 // 16)
    digest = hashlib.sha256(content.encode()).hexdigest()

    assert desk("write_file", path="large", content=content).metadata["sha256"] == digest
    read = desk("read_file", path="large", offset=6_553_600, limit=5)

    assert desk.sh("sha256sum < large").split()[0] == digest
    assert (read.stdout, read.metadata["total_lines"]) == ("0123456789abcde\n", 6_553_600)
    assert (read.metadata["sha256"], read.metadata["file_size"]) == (digest, 100 * 1024 * 1024)
    assert (
        "exceed the limit of 104857600"
        in desk("write_file", path="larger", content=content + "x").error
    )
    desk.sh("rm large")


def test_a_range_of_lines_can_be_read(desk: Desk) -> None:
    desk.sh("seq 10 > lines; printf 'a\\r\\nb' > ends")

    middle = desk("read_file", path="lines", offset=3, limit=2)

    assert (middle.stdout, middle.truncated) == ("3\n4\n", True)
    assert middle.output == "3\n4\n\n[lines 3 to 4 of 10; give 'offset' and 'limit' for others]"
    assert desk("read_file", path="ends").output == "a\r\nb"
    assert desk("read_file", path="ends").metadata["total_lines"] == 2
    assert "past its end" in desk("read_file", path="lines", offset=11).error
    assert desk("read_file", path="lines", max_bytes=3).stdout == "1\n2"


def test_a_write_is_complete_or_changes_nothing(container: hr.Container) -> None:
    """W7: a failed write keeps the old file and leaves no other file."""
    desk = make_desk(container)
    desk.sh("echo old > kept; chmod 750 kept; mkdir dir")

    assert "is a directory" in desk("write_file", path="dir", content="x").error
    assert "could not be written" in desk("write_file", path="kept/below", content="x").error
    assert desk("write_file", path="kept", content="new").success

    assert desk.sh("cat kept; stat -c %a kept; ls -A") == "new750\ndir\nkept\n"


def replace_cat(desk: Desk, program: str) -> None:
    """Replace ``cat`` for the slot."""
    desk.sh(f"mkdir ../bin; echo '#!/bin/sh\n{program}' > ../bin/cat; chmod 755 ../bin/cat")
    desk.slot_exec.env["PATH"] = f"/tmp/{desk.slot_exec.slot_id}/bin:/usr/bin:/bin"


@pytest.mark.slow
def test_a_write_that_times_out_leaves_nothing(container: hr.Container) -> None:
    desk = make_desk(container)
    desk.sh("echo old > f")
    replace_cat(desk, "/bin/cat; touch ../written; sleep 300")

    result = desk.call("write_file", {"path": "f", "content": "x" * 1000}, timeout_s=6)

    assert (result.success, result.metadata.get("timed_out")) == (False, True)
    assert desk.sh("/bin/cat f; ls -A; ls ..") == "old\nf\nbin\nthe workspace\nwritten\n"


def test_incomplete_content_does_not_replace_a_file(container: hr.Container) -> None:
    desk = make_desk(container)
    desk.sh("echo old > f")
    replace_cat(desk, "head -c 10")

    assert "arrived incomplete" in desk("write_file", path="f", content="x" * 1000).error
    assert desk.sh("/bin/cat f; ls -A") == "old\nf\n"


def test_content_can_be_appended(desk: Desk) -> None:
    assert desk("write_file", path="log", content="a\n", append=True).metadata["created"]
    assert (
        desk("write_file", path="log", content="b\n", append=True).output == "2 bytes added to log"
    )
    assert desk.sh("cat log") == "a\nb\n"


def test_files_are_listed_with_type_and_size(container: hr.Container) -> None:
    desk = make_desk(container)
    desk.sh(
        "mkdir -p d/e .h; echo 12 > d/f; touch .h/x d/.y; ln -s d l; mkfifo p; touch -d @1000 d/f"
    )

    assert desk("list_files").output == "d/\nl\tlink\np\tpipe"
    assert desk("list_files", recursive=True).output == "d/\nd/e/\nd/f\t3\nl\tlink\np\tpipe"
    everything = desk("list_files", recursive=True, hidden=True).metadata["entries"]
    assert [e["path"] for e in everything] == [".h", ".h/x", "d", "d/.y", "d/e", "d/f", "l", "p"]
    assert everything[5] == {"path": "d/f", "type": "file", "size": 3, "mtime": 1000.0}
    capped = desk("list_files", recursive=True, max_entries=2)
    assert (capped.truncated, len(capped.metadata["entries"])) == (True, 2)
    assert "is not a directory" in desk("list_files", path="d/f").error
    assert desk("list_files", path="d/e").output == "(nothing)"


def test_a_missing_workspace_is_an_error(container: hr.Container) -> None:
    desk = make_desk(container)
    desk.sh("rmdir '../the workspace'")

    assert "workspace" in desk("write_file", path="f", content="x").error
    assert "create it again" in desk("write_file", path="f", content="x").error
    assert "no such directory" in desk("bash", command="true").error
