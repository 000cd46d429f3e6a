"""The artifact tools, in a real container (R17)."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile

import pytest

import hyperruntime as hr
from hyperruntime.pool.tools import artifact
from tests.contract.toolplace import Desk, make_desk

pytestmark = pytest.mark.engine

KEYS = "success error path content encoding bytes file_size truncated sha256 mime entries format".split()


@pytest.fixture
def desk(container: hr.Container) -> Desk:
    desk = make_desk(container)
    desk.sh(
        "mkdir -p out/.h; echo one > out/a; ln out/a out/hard; ln -s a out/soft; seq 100000 > "
        "'out/.h/n\nl'"
    )
    return desk


def test_all_artifact_tools_have_one_schema_for_results_and_errors(desk: Desk) -> None:
    """R17, W26: the public system had two schemas."""
    for tool in ("read_artifact", "list_artifacts", "archive_artifacts"):
        for path in ("out", "out/a", "none", "/etc", ""):
            assert list(artifact(desk(tool, path=path))) == KEYS


def test_the_digest_is_of_the_whole_file_even_if_the_content_is_truncated(desk: Desk) -> None:
    """R17: the public system returned the digest of the truncated content."""
    whole = "".join(f"{n}\n" for n in range(1, 100001)).encode()

    found = artifact(desk("read_artifact", path="out/.h/n\nl", max_bytes=10))

    assert (found["content"], found["bytes"], found["truncated"]) == ("1\n2\n3\n4\n5\n", 10, True)
    assert (found["file_size"], found["sha256"]) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_binary_content_is_returned_as_base64(desk: Desk) -> None:
    desk.sh("printf '\\377\\000\\n' > out/b; printf 'é' > out/t")

    found = artifact(desk("read_artifact", path="out/b"))

    assert (base64.b64decode(found["content"]), found["encoding"]) == (b"\xff\0\n", "base64")
    assert "UTF-8" in desk("read_artifact", path="out/b", encoding="text").error
    assert artifact(desk("read_artifact", path="out/t", max_bytes=1))["content"] == ""


def test_a_list_has_every_entry_with_its_type_and_size(desk: Desk) -> None:
    found = artifact(desk("list_artifacts", path="out", recursive=True))

    assert [(e["path"], e["type"]) for e in found["entries"]] == [
        (".h", "directory"), (".h/n\nl", "file"), ("a", "file"), ("hard", "file"), ("soft", "link"),
    ]  # fmt: skip
    assert found["entries"][2]["size"] == 4
    assert artifact(desk("list_artifacts", path="out", max_entries=1))["truncated"]


@pytest.mark.parametrize("form", ["tar.gz", "tar", "zip"])
def test_an_archive_contains_the_directory(desk: Desk, form: str) -> None:
    found = artifact(desk("archive_artifacts", path="out", format=form))
    data = base64.b64decode(found["content"])

    assert (found["format"], found["truncated"], found["bytes"]) == (form, False, len(data))
    assert found["sha256"] == hashlib.sha256(data).hexdigest()
    assert {e["path"] for e in found["entries"]} == {".h", ".h/n\nl", "a", "hard", "soft"}
    if form == "zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.read("a") == archive.read("hard") == b"one\n"
            assert archive.testzip() is None
    else:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            member = tar.extractfile("hard")
            assert member is not None
            assert member.read() == b"one\n"
            assert tar.getmember("soft").linkname == "a"


def test_one_file_can_be_archived(desk: Desk) -> None:
    found = artifact(desk("archive_artifacts", path="out/a", format="tar"))

    assert [e["path"] for e in found["entries"]] == ["a"]


@pytest.mark.slow
def test_limits_apply_while_the_content_is_read(desk: Desk) -> None:
    """R17, W9: the public system ignored limits for archives."""
    assert "more than 2 entries" in desk("archive_artifacts", path="out", max_entries=2).error
    desk.sh("truncate -s 500G out/holes; mkfifo out/pipe; truncate -s 6M large")

    assert (
        "'out' cannot be archived: its files are larger than 1 GiB in total"
        in desk("archive_artifacts", path="out").error
    )
    assert (
        "larger than 5242880 bytes" in desk("archive_artifacts", path="large", format="tar").error
    )
    assert "larger than 1 GiB" in desk("read_artifact", path="out/holes").error


def test_files_that_cannot_be_archived_are_named(desk: Desk) -> None:
    desk.sh("mkfifo out/pipe")

    result = desk("archive_artifacts", path="out")

    assert result.success
    assert result.truncated
    assert "'pipe' is left out: a FIFO" in result.output
