"""Trees of containers as archives; the containers may be hostile."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Awaitable, Callable

import pytest

import hyperruntime as hr
from hyperruntime.errors import TransferError, UnsafeArchiveError
from hyperruntime_openai_agents.archives import archive_tree, extract_archive

pytestmark = pytest.mark.engine

MAKE = """rm -rf /tmp/tree && mkdir -p /tmp/tree/deep/skip && cd /tmp/tree && echo one >one && ln one deep/hard
ln -s one soft; mkfifo pipe; echo gone >deep/skip/file; echo stays >deep/skipped; chmod 640 one"""


def members(archive: io.BufferedIOBase) -> dict[str, bytes]:
    with archive, tarfile.open(fileobj=archive) as tar:
        return {member.name: member.type for member in tar}


def run(start: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await start()

    asyncio.run(main())


async def test_a_tree_comes_back_in_another_place(container: hr.Container) -> None:
    container.exec(["sh", "-c", MAKE]).check()

    with await archive_tree(container, "/tmp/tree/deep") as archive:
        await extract_archive(container, archive, "/tmp/new/place")
    said = container.exec(
        ["sh", "-c", "cd /tmp/new/place/deep && cat hard skipped skip/file && stat -c %a hard"]
    )
    assert said.check().stdout == b"one\nstays\ngone\n640\n"


async def test_an_archive_leaves_out_what_it_is_told_and_has_hard_links_as_files(
    container: hr.Container,
) -> None:
    container.exec(["sh", "-c", MAKE]).check()

    whole = members(await archive_tree(container, "/tmp/tree"))  # type: ignore[arg-type]
    some = members(await archive_tree(container, "/tmp/tree", exclude=["deep/skip"]))  # type: ignore[arg-type]
    assert set(whole) - set(some) == {"tree/deep/skip", "tree/deep/skip/file"}
    assert whole["tree/one"] == whole["tree/deep/hard"] == tarfile.REGTYPE


async def test_an_archive_that_is_too_large_or_forged_is_refused(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime_openai_agents.archives._MOST_BYTES", 1000000)
    container.exec(
        ["sh", "-c", "mkdir -p /tmp/large && head -c 3000000 /dev/zero >/tmp/large/file"]
    ).check()

    with pytest.raises(UnsafeArchiveError, match="more than 1000000 bytes"):
        await archive_tree(container, "/tmp/large")
    with pytest.raises(TransferError, match="No such file"):
        await archive_tree(container, "/tmp/missing")


@pytest.mark.parametrize(
    ("name", "kind", "link", "word"),
    [
        ("../out", tarfile.REGTYPE, "", "leads out"),
        ("/etc/out", tarfile.REGTYPE, "", "leads out"),
        ("a/link", tarfile.SYMTYPE, "../../out", "leads out"),
        ("link", tarfile.SYMTYPE, "/etc", "leads out"),
        ("hard", tarfile.LNKTYPE, "../out", "leads out"),
        ("device", tarfile.CHRTYPE, "", "device"),
        ("pipe", tarfile.FIFOTYPE, "", "FIFO"),
    ],
)
def test_an_archive_with_an_unsafe_member_is_refused_as_a_whole(
    container: hr.Container, name: str, kind: bytes, link: str, word: str
) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)
    stream.seek(0)
    with pytest.raises(UnsafeArchiveError, match=word):
        run(lambda: extract_archive(container, stream, "/tmp/refused"))
    assert container.exec(["ls", "/tmp/refused"]).exit_code != 0
    with pytest.raises(TransferError):
        run(lambda: extract_archive(container, io.BytesIO(b"no archive" * 100), "/tmp/refused"))
