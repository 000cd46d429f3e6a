"""Requirements files of pip that others wrote: what of them pip of the host may read.

Pip runs the build script of a source package as the user, also where it only downloads: for a path, a URL, ``-e`` and
``--no-binary``. It also puts variables of the environment into ``${NAME}``, such as a key into the address of an index.
So pip of the host never reads the file itself. It reads a new file with the names, versions and harmless options of the
old one; so it does not matter where pip and this module would read the old file differently. A file with anything else
is read by pip in the container that the build uses.

Source: pip's documentation, "Requirements File Format"; PEP 508 for the form of a name with versions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs

from hyperruntime.storage.run_files import read_at_most
from hyperruntime.units import MIB

_COMMENT = re.compile(r"(^|\s+)#.*$")
_CONTINUED = re.compile(r"\\\r?\n")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]@/\\]*\])?\s*([(<>=!~][^@/\\;]*)?(;[^@/\\]*)?", re.ASCII)
_OPTION_AFTER = re.compile(r"\s-")  # pip reads an option behind a name, a version or a marker
_HASHES = re.compile(r"(\s+--hash[= ][a-z0-9]+:[0-9A-Fa-f]+)+\s*", re.ASCII)
_ARCHIVE = re.compile(
    r"[^\s\[]*\.(zip|whl|tar|tar\.\w+|tgz|tbz|txz|tlz)\b", re.ASCII | re.IGNORECASE
)  # pip looks for such a file
_FILE = re.compile(r"(?:-(?P<short>[rc])\s+|--(?P<long>requirement|constraint)(?:=|\s+))(?P<file>[\w./+-]+)", re.ASCII)
_VALUE = r"""(?!-)[^\s"'\\]+"""
_FIND_LINKS = re.compile(rf"(?:-f\s+|--find-links(?:=|\s+))(?P<value>{_VALUE})")
_HARMLESS = re.compile(
    rf"(?:-i\s+|--(?:index-url|extra-index-url)(?:=|\s+)){_VALUE}|--no-index|--prefer-binary|--pre|--require-hashes"
)
_MOST_FILES = 100


@attrs.define
class _Plain:
    """The lines that pip of the host may read; those of constraints are apart."""

    requirements: list[str] = attrs.field(factory=list)
    constraints: list[str] = attrs.field(factory=list)


def write_plain_requirements(file: Path, target: Path) -> str:
    """Write what pip of the host may read of a requirements file; return the first line it must not read, or "".

    Args:
        file: the requirements file; the files that it names are read too.
        target: a new file; its constraints are in another new file beside it.
    """
    plain = _Plain()
    waiting, seen = [(file, False)], set[tuple[Path, bool]]()
    while waiting:
        path, is_constraint = waiting.pop()
        if (path.resolve(), is_constraint) in seen:
            continue
        seen.add((path.resolve(), is_constraint))
        try:
            lines = list(_lines(_text(path)))
        except (OSError, ValueError) as error:
            return f"{path.name}: {error}"
        for line in lines:
            if named := _FILE.fullmatch(line):
                waiting.append((path.parent / named["file"], is_constraint or "c" in (named["short"] or named["long"])))
            elif plain_line := _plain_line(line, path.parent):
                (plain.constraints if is_constraint else plain.requirements).append(plain_line)
            else:
                return f"{path.name}: {line}"
        if len(seen) > _MOST_FILES:
            return f"{path.name}: more than {_MOST_FILES} files"
    constraints = target.with_name(f"constraints-{target.name}")
    constraints.write_text("\n".join([*plain.constraints, ""]))
    target.write_text("\n".join([*plain.requirements, f"-c {constraints.name}", ""]))
    return ""


def _text(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError("it is not a regular file")
    with path.open("rb") as file:
        return read_at_most(file, MIB).decode("utf-8-sig")


def _plain_line(line: str, directory: Path) -> str:
    """Return a line as pip of the host may read it; "" if it must not."""
    if not (line.isascii() and line.replace("\t", " ").isprintable()) or _VARIABLE.search(line):
        return ""
    if links := _FIND_LINKS.fullmatch(line):
        place = directory.absolute() / links["value"]
        return f"--find-links {shlex.quote(str(place))}" if place.exists() else line
    return line if _HARMLESS.fullmatch(line) or _is_plain_name(line) else ""


def _is_plain_name(line: str) -> bool:
    name, hashes = line, ""
    if found := re.search(r"\s+--hash", line):
        name, hashes = line[: found.start()], line[found.start() :]
    if hashes and not _HASHES.fullmatch(hashes):
        return False
    return _NAME.fullmatch(name) is not None and not (_ARCHIVE.match(name) or _OPTION_AFTER.search(name))


def _lines(text: str) -> Iterator[str]:
    for line in _CONTINUED.sub(" ", text).splitlines():
        if stripped := _COMMENT.sub("", line).strip():
            yield stripped
