"""Requirements files of pip that others wrote: what each line is, and what of it pip of the host
may read.

Pip runs the build script of a source package as the user, also where it only downloads: for a path,
a URL, ``-e`` and ``--no-binary``. It also puts variables of the environment into ``${NAME}``, such
as a key into the address of an index. So pip of the host never reads the file itself. It reads a
new file with the names, versions and harmless options of the old one; so it does not matter where
pip and this module would read the old file differently. Lines that need source code are for pip in
a container, or for ``--sdist``, which the user gives. Lines that neither can use are problems.

Source: pip's documentation, "Requirements File Format"; PEP 508 (names with versions); PEP 503
(names).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from hyperruntime.images.packages.network import without_login
from hyperruntime.storage.run_files import read_at_most
from hyperruntime.units import MIB

_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\]@/\\]*\])?\s*([(<>=!~][^@/\\;]*)?(;[^@/\\]*)?", re.ASCII
)
_OPTION_AFTER = re.compile(r"\s-")  # pip reads an option behind a name, a version or a marker
_HASHES = re.compile(r"(\s+--hash[= ][a-z0-9]+:[0-9A-Fa-f]+)+\s*", re.ASCII)
_ARCHIVE = re.compile(
    r"[^\s\[]*\.(zip|whl|tar|tar\.\w+|tgz|tbz|txz|tlz)\b", re.ASCII | re.IGNORECASE
)  # pip looks for such a file
_FILE = re.compile(
    r"(?:-(?P<short>[rc])\s+|--(?P<long>requirement|constraint)(?:=|\s+))(?P<file>[\w./+-]+)",
    re.ASCII,
)
_VALUE = r"""(?!-)[^\s"'\\]+"""
_FIND_LINKS = re.compile(rf"(?:-f\s+|--find-links(?:=|\s+))(?P<value>{_VALUE})")
_INDEX = rf"(?:-i\s+|--(?:index-url|extra-index-url)(?:=|\s+)){_VALUE}"
_HARMLESS = re.compile(rf"{_INDEX}|--no-index|--prefer-binary|--pre|--require-hashes")
_EDITABLE = re.compile(r"(-e|--editable)(\s+|=)")
# A revision must not begin with "-": git would read an option.
_SOURCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[\w., -]*\])?\s*@\s*)?(?P<url>(?:git\+)?https?://(?:(?!@-)[^\s\"'\\;,])+)"
    r"(?P<marker>(?:\s+;|;\s)[^@/\\]*)?",
    re.ASCII,
)
_ONLY_INSIDE = re.compile(rf"--(?:no-binary|only-binary|trusted-host|use-feature)(?:=|\s+){_VALUE}")
_BUILD_OPTIONS = re.compile(r"(\s+(?:--global-option|--config-settings?)(?:=|\s+)[^\s\"'\\]+)+")
_OTHER_SCHEME = re.compile(
    r"(?P<scheme>(?:git|hg|svn|bzr)(?:\+[a-z]+)?|ssh|ftp|sftp|s3):(?://)?|git@", re.IGNORECASE
)
_EXACT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*===?\s*(?P<version>[^\s,;*]+)\s*"
)
_MOST_FILES = 100


@attrs.frozen(kw_only=True)
class Line:
    """A line of a requirements file.

    Attributes:
        place: file and number, such as ``requirements.txt:7``.
        text: the line, as pip may read it.
        is_constraint: whether it comes from a file of constraints.
    """

    place: str
    text: str
    is_constraint: bool = False

    @property
    def shown(self) -> str:
        """The line with its place and without a login, for messages."""
        return f"{self.place}: {without_login(self.text)}"

    @property
    def name(self) -> str:
        """The name of the package in the form that compares; "" if the line is an option."""
        return normal_name(self.text)


@attrs.define
class Requirements:
    """The lines of a requirements file and of the files that it names.

    Attributes:
        plain: names, versions and harmless options, which pip of the host may read.
        sources: source code on the network: ``git+https://`` and archives, without ``-e``.
        inside: options that only pip in a container may get.
        problems: one message for each line that pip can use neither here nor in a container.
    """

    plain: list[Line] = attrs.field(factory=list)
    sources: list[Line] = attrs.field(factory=list)
    inside: list[Line] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)

    def index_options(self) -> list[str]:
        """Return the words of the options of an index and of ``--find-links``."""
        options = (
            line.text
            for line in self.plain
            if line.text.startswith(("-i", "--index", "--extra", "--no-index"))
        )
        links = (line.text for line in self.plain if line.text.startswith(("-f", "--find")))
        return [word for text in (*options, *links) for word in shlex.split(text)]

    def place_of(self, name: str) -> str:
        """Return the place of a package's line; "" if none names it."""
        named = (
            line.place
            for line in self.plain
            if not line.is_constraint and line.name == normal_name(name)
        )
        return next(named, "")


def normal_name(text: str) -> str:
    """Return the name at the beginning of a requirement, in the form that compares; "" if there is
    none.
    """
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def read_requirements(file: Path) -> Requirements:
    """Return the lines of a requirements file and of the files that it names, each read once."""
    found = Requirements()
    waiting = [(file, False)]
    seen = set[tuple[Path, bool]]()
    while waiting and len(seen) <= _MOST_FILES:
        path, is_constraint = waiting.pop()
        if (path.resolve(), is_constraint) in seen:
            continue
        seen.add((path.resolve(), is_constraint))
        try:
            lines = list(_lines(_text(path)))
        except (OSError, ValueError) as error:
            found.problems.append(f"{path.name}: {getattr(error, 'strerror', None) or error}")
            continue
        for number, text in lines:
            line = Line(place=f"{path.name}:{number}", text=text, is_constraint=is_constraint)
            if named := _FILE.fullmatch(text):
                waiting.append(
                    (
                        path.parent / named["file"],
                        is_constraint or "c" in (named["short"] or named["long"]),
                    )
                )
            else:
                _sort(line, path.parent, found)
    if waiting:
        found.problems.append(f"{file.name}: it names more than {_MOST_FILES} files")
    found.problems += _conflicts(found)
    return found


def write_requirements(lines: Iterable[Line], target: Path) -> None:
    """Write lines as a new requirements file; the constraints among them are in another new file
    beside it.
    """
    plain = list(lines)
    constraints = target.with_name(f"constraints-{target.name}")
    constraints.write_text("\n".join([*(line.text for line in plain if line.is_constraint), ""]))
    wanted = [line.text for line in plain if not line.is_constraint]
    target.write_text("\n".join([*wanted, f"-c {constraints.name}", ""]))


def without_hashes(line: Line) -> Line | None:
    """Return a line without the hashes of its archives; None if it only asks for hashes."""
    if line.text == "--require-hashes":
        return None
    return attrs.evolve(line, text=re.split(r"\s+--hash", line.text)[0])


def is_plain_name(line: str) -> bool:
    """Return whether a line is only a name with versions, a marker and hashes."""
    name = line
    hashes = ""
    if found := re.search(r"\s+--hash", line):
        name = line[: found.start()]
        hashes = line[found.start() :]
    if hashes and not _HASHES.fullmatch(hashes):
        return False
    return _NAME.fullmatch(name) is not None and not (
        _ARCHIVE.match(name) or _OPTION_AFTER.search(name)
    )


def _sort(line: Line, directory: Path, found: Requirements) -> None:
    """Add a line to those of its kind."""
    text = line.text
    if not (text.isascii() and text.replace("\t", " ").isprintable()):
        found.problems.append(
            f"{line.place}: {text!a}: the line has a letter that is not ASCII; write it in ASCII"
        )
    elif _VARIABLE.search(text):
        found.problems.append(f"{line.shown}: no variable of this machine is read; write its value")
    elif plain := _plain_line(text, directory):
        found.plain.append(attrs.evolve(line, text=plain))
    elif _SOURCE.fullmatch(source := _EDITABLE.sub("", text, count=1)):
        found.sources.append(attrs.evolve(line, text=source))
    elif _ONLY_INSIDE.fullmatch(text) or _has_build_options(text):
        found.inside.append(line)
    else:
        found.problems.append(f"{line.shown}: {_why_not(text)}")


def _why_not(text: str) -> str:
    """Return the reason why neither pip of the host nor pip in a container can use a line."""
    rest = _EDITABLE.sub("", text, count=1)
    place = rest.partition("@")[2].strip() or rest if not rest.startswith("git@") else rest
    if re.match(r"(-r|-c|--requirement|--constraint)\b", text):
        return "name one file of this machine, without quotes, in a line of its own"
    if other := _OTHER_SCHEME.match(place) or _OTHER_SCHEME.match(rest):
        return (
            f"the image `dev` has no program for {other[0]} here; write git+https://, or the "
            "name of the package"
        )
    is_path = (
        place.startswith((".", "/", "~", "file:", "git+file:"))
        or "/" in rest
        or _ARCHIVE.match(rest)
    )
    if is_path and not text.startswith("--"):
        return "a path of this machine; write the name, and let pip find the wheel (PIP_FIND_LINKS)"
    if text.startswith("-"):
        return "no option of a requirements file, or more than one in a line"
    return "it cannot be read as a name with versions"


def _has_build_options(text: str) -> bool:
    found = re.search(r"\s+--(?:global-option|config-setting)", text)
    return bool(
        found
        and is_plain_name(text[: found.start()])
        and _BUILD_OPTIONS.fullmatch(text[found.start() :])
    )


def _conflicts(found: Requirements) -> Iterator[str]:
    """Yield a message for each pair of lines that pip cannot use together."""
    indexes = [line for line in found.plain if re.fullmatch(_INDEX, line.text)]
    if any(line.text == "--no-index" for line in found.plain):
        yield from (
            f"{line.shown}: another line is --no-index; remove one of them" for line in indexes
        )
    exact: dict[str, tuple[str, Line]] = {}
    for line in found.plain:
        if match := _EXACT.fullmatch(re.split(r"\s+--hash", line.text)[0]):
            version, first = exact.setdefault(line.name, (match["version"], line))
            if version != match["version"]:
                yield f"{line.shown}: {first.place} wants version {version}; keep one of the two"
    packages = [line for line in found.plain if line.name and not line.is_constraint]
    hashed = [
        line for line in found.plain if "--hash" in line.text or line.text == "--require-hashes"
    ]
    if hashed and not any(line.is_constraint for line in hashed):
        bare = [line for line in packages if "--hash" not in line.text]
        bare += [line for line in found.sources if "#" not in line.text or "git+" in line.text]
        reason = f"it has no --hash, which {hashed[0].place} asks for; give every line one, or none"
        yield from (f"{line.shown}: {reason}" for line in bare)


def _text(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError("the file does not exist")
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError("it is not a regular file")
    with path.open("rb") as file:
        return read_at_most(file, MIB).decode("utf-8-sig")


def _plain_line(line: str, directory: Path) -> str:
    """Return a line as pip of the host may read it; "" if it must not."""
    if links := _FIND_LINKS.fullmatch(line):
        place = directory.absolute() / links["value"]
        return f"--find-links {shlex.quote(str(place))}" if place.exists() else line
    return line if _HARMLESS.fullmatch(line) or is_plain_name(line) else ""


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not empty; a comment does not continue, as
    in pip.
    """
    begun = ""
    first = 0
    for number, line in enumerate((*text.splitlines(), ""), 1):
        first = first or number
        if line.endswith("\\") and not _COMMENT.match(line):
            begun += line[:-1]
            continue
        whole = begun + (f" {line}" if _COMMENT.match(line) else line)
        if stripped := _COMMENT.sub("", whole).strip():
            yield first, stripped
        begun = ""
        first = 0
