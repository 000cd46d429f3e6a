"""Requirements files of pip that others wrote: which of them pip of the host may read.

Pip runs the build script of a source package as the user, also where it only downloads: for a path, a URL, ``-e`` and
``--no-binary``. It also puts variables of the environment into ``${NAME}``, such as a key into the address of an index.
A file with anything but names, versions and harmless options is read by pip in the container that the build uses.

Source: pip's documentation, "Requirements File Format"; PEP 508 for the form of a name with versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_COMMENT = re.compile(r"(^|\s+)#.*$")
_CONTINUED = re.compile(r"\\\r?\n")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]@/\\]*\])?\s*([(<>=!~][^@/\\;]*)?(;[^@/\\]*)?(\s--hash[= ]\S+)*\s*", re.ASCII
)
_ARCHIVE = re.compile(
    r"[^\s\[]*\.(zip|whl|tar|tar\.\w+|tgz|tbz|txz|tlz)\b", re.ASCII | re.IGNORECASE
)  # pip looks for such a file
_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)[= ]\s*(?P<file>\S.*)")
_HARMLESS = re.compile(
    r"(?:-i|--index-url|--extra-index-url|-f|--find-links)[= ]\s*\S+|--no-index|--prefer-binary|--pre|--require-hashes"
)
_MOST_FILES = 100


def line_for_the_container(file: Path) -> str:
    """Return the first line that pip of the host must not read, with its file; "" if there is none.

    Args:
        file: the requirements file; the files that it names are read too.
    """
    waiting, seen = [file], set[Path]()
    while waiting:
        path = waiting.pop()
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            lines = list(_lines(path.read_text(encoding="utf-8-sig")))
        except (OSError, ValueError) as error:
            return f"{path.name}: {error}"
        for line in lines:
            if found := _FILE.fullmatch(line):
                waiting.append(path.parent / found["file"].strip())
            elif _VARIABLE.search(line) or not (_is_plain_name(line) or _HARMLESS.fullmatch(line)):
                return f"{path.name}: {line}"
        if len(seen) > _MOST_FILES:
            return f"{path.name}: more than {_MOST_FILES} files"
    return ""


def _is_plain_name(line: str) -> bool:
    return _NAME.fullmatch(line) is not None and _ARCHIVE.match(line) is None


def _lines(text: str) -> Iterator[str]:
    for line in _CONTINUED.sub(" ", text).splitlines():
        if stripped := _COMMENT.sub("", line).strip():
            yield stripped
