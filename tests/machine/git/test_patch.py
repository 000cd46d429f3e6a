"""The files of a diff are those that git names."""

from __future__ import annotations

import base64
import zlib

import pytest

from hyperruntime.errors import PatchError
from hyperruntime.git.patch import MAX_PATCH_BYTES, files_of

HUNK = b"@@ -1 +1 @@\n-old\n+new\n"
TEXT = b"diff --git a/t.py b/t.py\nindex 1..2 100644\n--- a/t.py\n+++ b/t.py\n" + HUNK
BINARY = (
    b"diff --git a/b b/b\nindex 1..2\nGIT binary patch\n"
    b"literal 3\nKcmYdfWMpPvU|;|M00jU5\n\nliteral 0\nHcmV?d00001\n\n"
)


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
    "a message before it": (b"From: me\n\n---\n" + TEXT, [(b"t.py",)]),
    "plain with times": (b"--- a/x y\t2024-01-01\n+++ b/x y\t2024-01-02\n" + HUNK, [(b"x y",)]),
    "new": (
        b"diff --git a/n b/n\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/n\n"
        b"@@ -0,0 +1 @@\n+new\n",
        [(b"n",)],
    ),
    "mode only": (b"diff --git a/a b/c b/a b/c\nold mode 100644\nnew mode 100755\n", [(b"a b/c",)]),
    "quoted": (
        b'diff --git "a/\\303\\251\\n\\"" "b/\\303\\251\\n\\""\nnew file mode 100644\n',
        [('é\n"'.encode(),)],
    ),
    "renamed": (
        b'diff --git a/x "b/\\t"\nsimilarity index 100%\nrename from x\nrename to "\\t"\n',
        [(b"\t", b"x")],
    ),
    "headers in a body": (
        TEXT.replace(HUNK, b"@@ -1,2 +1,3 @@\n--- a/evil\n+++ b/evil\n+@@ -1 +1 @@\n context\n"),
        [(b"t.py",)],
    ),
}


@pytest.mark.parametrize(("patch", "names"), NAMES.values(), ids=NAMES.keys())
def test_files_have_the_names_that_git_reads(patch: bytes, names: list[tuple[bytes, ...]]) -> None:
    assert files_of(patch) == {one[0]: one for one in names}


def test_a_too_large_diff_and_text_that_is_not_a_diff_are_rejected() -> None:
    with pytest.raises(PatchError, match="in all"):
        files_of(delta(1 << 28) * 2)
    with pytest.raises(PatchError, match="in all"):
        files_of(BINARY.replace(b"literal 3", b"literal 300000000"))
    with pytest.raises(PatchError, match="at most"):
        files_of(bytes(MAX_PATCH_BYTES + 1))
    with pytest.raises(PatchError, match="not a diff"):
        files_of(b"I have fixed it.\n")
