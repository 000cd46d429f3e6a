"""Collect the wheels of a requirements file with pip of the host, and list all that are missing at
once.

pip stops at the first package without a wheel. So each one that it names gets a stand-in, an empty
wheel that only this search sees, and pip looks again, until it names no more. Only with ``--sdist``
is a missing wheel built here; nothing else runs code of a package on the host.

Source: pip's documentation, "pip download", "pip install --dry-run", "pip index"; the specification
of binary wheels.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import attrs

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.host.inherited import shell_environment
from hyperruntime.host.process import ProcessResult, python_args, run_process, stream_process
from hyperruntime.images.packages.network import pip_settings, without_login
from hyperruntime.images.packages.requirements_file import (
    Line,
    Requirements,
    is_plain_name,
    normal_name,
    without_hashes,
    write_requirements,
)

# Platform tags, oldest first, of wheels that work with the glibc of Debian 12.
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")
_NEWEST_GLIBC = (2, 36)
_SEARCH_S = 300.0
_BUILD_S = 1800.0
_MOST_STAND_INS = 100
_ASKED_AT_ONCE = 4
_NONE_FOUND = re.compile(
    r"^ERROR: No matching distribution found for (?P<wanted>[^\n]+?)(?: \(from [^\n]*\))?$", re.M
)
_NEEDED_BY = re.compile(
    r"that satisfies the requirement [^\n]*? \(from (?!versions|-[rc] )(?P<parent>[^()\n]+)\)"
)
_UNREACHABLE = re.compile(r"^[^\n]*(?:Retry\(total=0,|Could not fetch URL)[^\n]*$", re.M)
_CLAUSE = re.compile(r"(?P<sign>===|==|~=|>=|<=|!=|>|<)\s*(?P<version>[\w.+!-]+)")
_AVAILABLE = re.compile(r"^Available versions: (?P<versions>.+)$", re.M)
_WHEEL = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<os>[^-]+)\.whl"
)
_COMMON = ("--disable-pip-version-check", "--no-input")


def default_pip() -> tuple[str, ...]:
    """Return the argv of the pip of this Python."""
    return python_args("-m", "pip")


@attrs.frozen(kw_only=True)
class Missing:
    """A package without a wheel for the image.

    Attributes:
        wanted: its name and versions.
        place: the line that wants it, or the package that needs it.
        why: the reason.
        is_nowhere: whether there is no source code of it either, so that no build can install it.
    """

    wanted: str
    place: str
    why: str
    is_nowhere: bool = False

    def __str__(self) -> str:
        """Return one line for a message."""
        return without_login(f"{self.place}: {self.wanted}: {self.why}")


@attrs.define(kw_only=True)
class WheelSearch:
    """One search for the wheels of a requirements file.

    Attributes:
        requirements: the lines of the file.
        python: the image's Python version, such as ``3.11``.
        directory: an empty directory for its own files.
        on_output: called with each line that pip writes while it downloads or builds.
        index_url: the index in place of pip's setting; "" means the setting.
        pip: argv of pip.
        stopped: the reason why the list of missing packages may have gaps, or "".
        has_index: whether the package index can be reached.
    """

    requirements: Requirements
    python: str
    directory: Path
    on_output: Callable[[str], None]
    index_url: str = ""
    pip: Sequence[str] = attrs.field(factory=default_pip)
    stopped: str = ""
    has_index: bool = True
    _built: dict[str, str] = attrs.field(factory=dict, init=False)
    _settings: dict[str, str] = attrs.field(factory=dict, init=False)
    _deadline: float = attrs.field(default=0.0, init=False)

    def has_pip(self) -> bool:
        """Return whether this machine has the pip."""
        return run_process([*self.pip, "--version"]).exit_code == 0

    def collect(
        self, target: Path, *, sdist: bool = False, only_look: bool = False
    ) -> tuple[Missing, ...]:
        """Download the wheels to a new directory; return the packages without one, whose wheels are
        not there.

        Nothing is downloaded if one of the packages cannot be had at all.

        Args:
            target: the directory.
            sdist: build missing wheels on this machine. This runs code of the packages, as the
                user.
            only_look: download nothing in any case.
        """
        (self.directory / "stand-ins").mkdir(parents=True)
        (self.directory / "built").mkdir()
        target.mkdir(parents=True)
        sources = self.requirements.sources if sdist and not only_look else ()
        missing = [one for line in sources if (one := self._build(line)) is not None]
        self._deadline = time.monotonic() + _SEARCH_S
        result = self._look() if only_look else self._download(target)
        if result is None or result.exit_code == 0:
            return tuple(missing)
        missing += self._find_missing(result, sdist=sdist and not only_look)
        if not (self.stopped or only_look or any(one.is_nowhere for one in missing)):
            result = self._download(target, without={one.wanted for one in missing})
            self.stopped = (
                f"pip could not download the wheels ({_error(result)})" if result.exit_code else ""
            )
        for path in (self.directory / "stand-ins").iterdir():
            (target / path.name).unlink(missing_ok=True)
        return tuple(missing)

    def _find_missing(self, result: ProcessResult, *, sdist: bool) -> list[Missing]:
        """Look again with a stand-in, or a built wheel, for each package that pip names, until it
        names no more.
        """
        self.on_output(
            f"a wheel is missing; looking for all that are missing, for at most {_SEARCH_S:.0f} s"
        )
        failed: list[Missing] = []
        without: dict[str, str] = {}
        while (found := _NONE_FOUND.search(_text(result))) is not None:
            if unreachable := _UNREACHABLE.search(_text(result)):
                self.stopped = (
                    f"pip of this machine cannot reach the package index ({unreachable[0].strip()})"
                )
                self.has_index = False
                break
            wanted = found["wanted"].strip()
            place = self.requirements.place_of(wanted) or _parent(_text(result))
            problem = self._build_again(wanted, place) if sdist else None
            failed += [problem] if problem is not None else []
            if self._built.get(wanted):
                pass
            elif self._stand_in(wanted):
                without |= {} if problem is not None else {wanted: place}
            else:
                self.stopped = f"pip stopped at {wanted} of {place}"
            self.stopped = self.stopped or (
                "it found too many" if len(without) > _MOST_STAND_INS else ""
            )
            if self.stopped or (again := self._look()) is None:
                break
            result = again
        else:
            if result.exit_code:
                self.stopped = f"pip could not look further ({_error(result)})"
        return failed + list(parallel_map(_ASKED_AT_ONCE, self._explain, list(without.items())))

    def _build_again(self, wanted: str, place: str) -> Missing | None:
        """Build the wheel of a package that pip named, once; return why it is missing then, or
        None.
        """
        if self._built.get(wanted):  # else pip would name it until the time limit
            self._built[wanted] = ""
            why = f"pip does not take the wheel built here for Python {self.python}"
            return Missing(wanted=wanted, place=place, why=why)
        if wanted in self._built or not is_plain_name(wanted):
            return None
        line = self._line(wanted, place)
        started = time.monotonic()
        problem = self._build(line)
        self._deadline += time.monotonic() - started  # the limit is for the search
        self._built[wanted] = self._built.get(line.text, "") if problem is None else ""
        if problem is None:
            return None
        explained = self._explain((wanted, place))
        return explained if explained.is_nowhere else problem

    def _look(self) -> ProcessResult | None:
        """Resolve the requirements without a download; return None after the time limit."""
        plain = [
            line for one in self.requirements.plain if (line := without_hashes(one)) is not None
        ]
        file = self._file(plain, "again.txt")
        args = [
            "install",
            "--dry-run",
            "--ignore-installed",
            "--target",
            str(self.directory / "nothing"),
            *_COMMON,
        ]
        args += [
            *_platform_args(self.python),
            *self._local_platform(),
            *self._links(stand_ins=True),
            "--requirement",
            str(file),
        ]
        try:
            return run_process(
                [*self.pip, *args], env=self._environment(), timeout_s=self._left_s()
            )
        except TimeoutError:
            self.stopped = f"the search ended after {_SEARCH_S:.0f} s"
            return None

    def _explain(self, item: tuple[str, str]) -> Missing:
        """Return why a package has no wheel, from the versions that the index has."""
        wanted, place = item
        name = normal_name(wanted)
        args = ["index", "versions", "--pre", name, *_COMMON, "--python-version", self.python]
        try:
            result = run_process(
                [*self.pip, *args], env=self._environment(self._indexes()), timeout_s=self._left_s()
            )
        except TimeoutError:
            return Missing(wanted=wanted, place=place, why="no wheel")
        if (listed := _AVAILABLE.search(_text(result))) is None:
            is_nowhere = "No matching distribution" in _text(result)
            why = "the index does not have it" if is_nowhere else "no wheel"
            return Missing(wanted=wanted, place=place, why=why, is_nowhere=is_nowhere)
        versions = [version.strip() for version in listed["versions"].split(",")]
        exact = re.search(r"===?\s*([\w.+!-]+)(?![\w.+!*-])", wanted)
        if exact and _same(exact[1]) not in map(_same, versions):
            known = ", ".join(versions[:5])
            return Missing(
                wanted=wanted,
                place=place,
                why=f"no such version; the index has {known}",
                is_nowhere=True,
            )
        return Missing(
            wanted=wanted, place=place, why=f"only source code, no wheel for Python {self.python}"
        )

    def _build(self, line: Line) -> Missing | None:
        """Build the wheel of one line on this machine; return why it is missing then, or None."""
        place = self.directory / f"one-{len(list(self.directory.iterdir()))}"
        place.mkdir()
        options = [one for one in self.requirements.plain if not one.name or one.is_constraint]
        file = self._file([*options, line], f"{place.name}.txt")
        args = [
            "wheel",
            "--no-deps",
            *_COMMON,
            "--wheel-dir",
            str(place),
            *self._links(),
            "--requirement",
            str(file),
        ]
        self.on_output(f"building the wheel of {without_login(line.text)} on this machine")
        try:
            result = run_process([*self.pip, *args], env=self._environment(), timeout_s=_BUILD_S)
        except TimeoutError:
            return Missing(
                wanted=line.text,
                place=line.place,
                why=f"its build took longer than {_BUILD_S:.0f} s",
            )
        made = next(place.glob("*.whl"), None)
        if result.exit_code or made is None:
            return Missing(
                wanted=line.text,
                place=line.place,
                why=f"it cannot be built here ({_error(result)})",
            )
        tags = _WHEEL.fullmatch(made.name)
        if tags is None or not self._fits(tags):
            return Missing(
                wanted=line.text,
                place=line.place,
                why=f"the wheel built here is only for {made.stem}",
            )
        shutil.move(made, self.directory / "built" / made.name)
        self._built[line.text] = f"{tags['name']}=={tags['version']}"
        return None

    def _fits(self, tags: re.Match[str]) -> bool:
        """Return whether a wheel that was built here works in the image."""
        if tags["os"] == "any" and tags["abi"] == "none":
            return any(
                tag == "py3" or tag == f"py{self.python.replace('.', '')}"
                for tag in tags["python"].split(".")
            )
        glibc = tuple(
            int(part) for part in platform.libc_ver()[1].split(".")[:2] if part.isdecimal()
        )
        is_same_python = f"{sys.version_info[0]}.{sys.version_info[1]}" == self.python
        return is_same_python and (0,) < glibc <= _NEWEST_GLIBC

    def _download(self, target: Path, *, without: Collection[str] | None = None) -> ProcessResult:
        """Download the wheels, without those of some packages.

        Hashes are checked here too: a file with hashes has a line for each dependency, so the lines
        of the others are enough.
        """
        lines = list(self.requirements.plain)
        options = self._links(stand_ins=without is not None)
        if without is not None and any("--hash" in line.text for line in lines):
            names = {normal_name(name) for name in (*without, *self._built)}
            lines = [line for line in lines if line.name not in names]
            options = ["--no-deps"]
            for path in (self.directory / "built").iterdir():
                shutil.copy(path, target)
        args = [*pip_args(self._file(lines, "plain.txt"), target, self.python), *options]
        args += self._local_platform()
        return stream_process([*self.pip, *args], on_line=self._told, env=self._environment())

    def _told(self, line: str) -> None:
        self.on_output(without_login(line))

    def _file(self, lines: Sequence[Line], name: str) -> Path:
        """Write a requirements file for pip of the host, in a directory of its own, with what was
        built of sources.
        """
        sources = {line.text for line in self.requirements.sources}
        built = [
            Line(place="", text=made)
            for text, made in self._built.items()
            if made and text in sources
        ]
        path = self.directory / name
        write_requirements([*lines, *built], path)
        return path

    def _line(self, wanted: str, place: str) -> Line:
        """Return the line of the file that names a package, with its hashes; else a new one."""
        own = (
            one
            for one in self.requirements.plain
            if not one.is_constraint and one.name == normal_name(wanted)
        )
        return next(own, Line(place=place, text=wanted))

    def _stand_in(self, wanted: str) -> bool:
        """Make an empty wheel that satisfies a requirement; return whether a new one was made."""
        name = normal_name(wanted).replace("-", "_")
        if not name:
            return False
        version = _version_for(wanted)
        wheel = self.directory / "stand-ins" / f"{name}-{version}-py3-none-any.whl"
        if wheel.exists():
            return False
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            tags = (
                "Wheel-Version: 1.0\nGenerator: hyperruntime\nRoot-Is-Purelib: true\nTag: "
                "py3-none-any\n"
            )
            file.writestr(f"{info}/WHEEL", tags)
            file.writestr(f"{info}/RECORD", "")
        return True

    def _links(self, *, stand_ins: bool = False) -> list[str]:
        names = ("built", *(["stand-ins"] if stand_ins else []))
        return [word for name in names for word in ("--find-links", str(self.directory / name))]

    def _local_platform(self) -> list[str]:
        """Return the option for the wheels that were built here, if there are any."""
        local = f"linux_{platform.machine()}"
        return ["--platform", local] if any(self._built.values()) else []

    def _environment(self, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return pip's environment; the addresses of indexes may have passwords, so they are in no
        argument.
        """
        own = {"PIP_INDEX_URL": self.index_url} if self.index_url else {}
        return {**shell_environment(os.environ), **own, **(more or {})}

    def _indexes(self) -> Mapping[str, str]:
        """Return the variables for the indexes of the file, for a command of pip that reads no
        file.
        """
        given = self.requirements.index_options()
        known = self._settings = self._settings or pip_settings(self.pip)
        extra = [known.get("extra-index-url", ""), *_values(given, "--extra-index-url")]
        links = [
            known.get("find-links", ""),
            *_values(given, "-f", "--find-links"),
            str(self.directory / "built"),
        ]
        main = _values(given, "-i", "--index-url")[-1:]
        found = {
            "PIP_EXTRA_INDEX_URL": " ".join(extra),
            "PIP_FIND_LINKS": " ".join(links),
            "PIP_INDEX_URL": "".join(main),
        }
        found |= {"PIP_NO_INDEX": "1"} if "--no-index" in given else {}
        return {name: value.strip() for name, value in found.items() if value.strip()}

    def _left_s(self) -> float:
        return max(1.0, self._deadline - time.monotonic())


def pip_args(requirements: Path, target: Path, python: str) -> list[str]:
    """Return the arguments of pip that download wheels for another Python than the host's.

    Args:
        requirements: a requirements file of pip.
        target: the directory for the wheels.
        python: the image's Python version, such as ``3.11``.
    """
    args = ["download", "--quiet", *_COMMON, *_platform_args(python)]
    return [*args, "--dest", str(target), "--requirement", str(requirements)]


def _platform_args(python: str) -> list[str]:
    tags = [f"{glibc}_{platform.machine()}" for glibc in _GLIBC]
    args = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    return [*args, *(word for tag in tags for word in ("--platform", tag))]


def _version_for(wanted: str) -> str:
    """Return a version that satisfies a requirement, if its first clause decides."""
    for clause in _CLAUSE.finditer(wanted.partition(";")[0]):
        version = clause["version"].rstrip(".").replace("-", ".")
        if clause["sign"] == ">":
            return f"{version}.1"
        if clause["sign"] not in ("<", "!="):
            return version
    return "0"


def _values(words: Sequence[str], *names: str) -> list[str]:
    """Return the values of options that are given as ``--name value``, ``--name=value`` or
    ``-n value``.
    """
    after = [value for name, value in pairwise(words) if name in names]
    return [
        *after,
        *(
            word.partition("=")[2]
            for word in words
            if word.partition("=")[0] in names and "=" in word
        ),
    ]


def _same(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version.lower().removeprefix("v"))


def _parent(text: str) -> str:
    found = _NEEDED_BY.search(text)
    return f"needed by {found['parent']}" if found else "needed by another package"


def _text(result: ProcessResult) -> str:
    return (result.stdout + b"\n" + result.stderr).decode(errors="replace")


def _error(result: ProcessResult) -> str:
    errors = re.findall(r"^\s*(?:ERROR:|error:)\s*(.+)$", _text(result), re.M)
    return without_login(errors[-1] if errors else result.error_text)
