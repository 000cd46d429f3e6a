"""Name the files of a diff as git reads it.

The store checks the result of every diff again. Source: git-apply(1), and git-diff(1), "Generating
patch text with -p".
"""

from __future__ import annotations

import base64
import os
import re
import zlib

from hyperruntime.errors import PatchError
from hyperruntime.git.command import try_git

MAX_PATCH_BYTES = 64 * 1024 * 1024
MAX_RESULT_BYTES = 256 * 1024 * 1024
Notes = tuple[tuple[str, str], ...]

_BINARY = re.compile(
    rb"^GIT binary patch\n(?:literal (\d{1,18})|delta \d{1,18}\n(.+))$", re.MULTILINE
)
_MOVED = re.compile(rb"^(?:rename|copy) from (.+)\n(?:rename|copy) to (.+)$", re.MULTILINE)
# git would write it below the repository
_ABSOLUTE = re.compile(rb"^--- .+\n\+\+\+ (/(?!dev/null\s).+)$", re.MULTILINE)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
}


def files_of(patch: bytes) -> dict[bytes, tuple[bytes, ...]]:
    """Return the files of a diff: the name by which git knows each one, and all of its names, which
    are two for a rename or a copy.

    Args:
        patch: the diff; text before and after it is ignored.

    Raises:
        PatchError: it is no diff, or it or its binary files are too large.
        RepositoryError: git failed.
    """
    if len(patch) > MAX_PATCH_BYTES:
        raise PatchError(f"the diff has {len(patch)} bytes; at most {MAX_PATCH_BYTES} are allowed")
    sizes = (int(size or _delta_result_size(line)) for size, line in _BINARY.findall(patch))
    if sum(sizes) > MAX_RESULT_BYTES:
        raise PatchError(f"the files of the diff have more than {MAX_RESULT_BYTES} bytes in all")
    # outside of any repository, so that git leaves out no file above the current directory
    args = ("apply", "--numstat", "-z", "--whitespace=nowarn", "-")
    found = try_git(args, env={"GIT_DIR": os.devnull}, input=patch)
    if found.exit_code != 0:
        reason = found.error_text.removeprefix("error: ").removeprefix("fatal: ")
        if "No valid patches" in reason:
            reason = "the text is not a diff; create it with git diff --binary"
        raise PatchError(f"the diff does not apply: {reason}")
    rows = found.stdout.split(b"\0")[:-1]
    files = {name: (name,) for name in (row.split(b"\t", 2)[2] for row in rows)}
    moved = ((unquote(new), unquote(old)) for old, new in _MOVED.findall(patch))
    absolute = {name: (name,) for name in _ABSOLUTE.findall(patch)}
    return {**files, **{names[0]: names for names in moved}, **absolute}


def unquote(name: bytes) -> bytes:
    """Return a name without its quotes and escapes, if it has any. Source: git-config(1),
    ``core.quotePath``.
    """
    quoted = _QUOTED.match(name)
    if quoted is None:
        return name
    return _ESCAPE.sub(
        lambda match: (
            bytes([int(match[1], 8) & 255])
            if match[1].isdigit()
            else _ESCAPES.get(match[1], match[1])
        ),
        quoted[1],
    )


def _delta_result_size(line: bytes) -> int:
    """Return the size of the file that a binary delta makes: the second number in the delta.

    Source: git's gitformat-pack(5), "Deltified representation".
    """
    try:
        delta = zlib.decompressobj().decompress(base64.b85decode(line[1:]), 64)
    except (ValueError, zlib.error):
        return 0  # git reports the error
    sizes = [0]
    shift = 0
    for byte in delta:
        sizes[-1] |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            sizes.append(0)
            shift = 0
    return sizes[1] if len(sizes) > 2 else 0
