"""Find and prepare the files that ``COPY`` and ``ADD`` copy, for builders that know less than
BuildKit.

Source: the Dockerfile reference of docs.docker.com, "COPY --chmod", "COPY --link" and
".dockerignore files".
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

from hyperruntime.errors import SpecError
from hyperruntime.host.process import run_process
from hyperruntime.images.dockerfile import Instruction, json_words, split_flags, split_words
from hyperruntime.images.dockerfile_bases import no, without_onbuild

_LINK = re.compile(r"--link(?:=(?:true|false|1|0))?", re.IGNORECASE)
_OCTAL = re.compile(r"[0-7]{3,4}")
_SYMBOLIC = re.compile(
    r"(?:[ugoa]*(?:[-+=](?:[rwxXst]*|[ugo]))+)(?:,[ugoa]*(?:[-+=](?:[rwxXst]*|[ugo]))+)*"
)
_ARCHIVE = re.compile(r"\.(tar|tgz|gz|bz2|xz|zst)\b")
_MODE_ALLOWED = "--chmod must be a number such as 755, or a symbolic mode such as u=rwX,go=rX"

# From the bottom, because a mode such as 644 closes a directory; links stay. $0: the mode; $1: the
# directory.
_CHANGE_MODES = 'umask 0; exec find "$1" -mindepth 1 -depth ! -type l -exec chmod -- "$0" {} +'

Modes = Literal["none", "octal", "all"]
"""The modes of ``--chmod`` that a builder knows."""


def is_mode(text: str) -> bool:
    """Return whether a text is a mode: a number such as 755, or a symbolic mode such as
    ``u=rwX,go=rX``.
    """
    return bool(_OCTAL.fullmatch(text) or _SYMBOLIC.fullmatch(text))


class BuildContext:
    """The files of a build context that its ignore file does not exclude.

    Attributes:
        path: the directory, without links.
    """

    def __init__(self, path: Path, dockerfile: Path) -> None:
        """Read the ignore file of a context.

        Args:
            path: the directory.
            dockerfile: the Dockerfile; ``NAME.dockerignore`` beside it comes before
                ``.dockerignore``.
        """
        self.path = path.resolve()
        own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
        names = (own, self.path / ".containerignore", self.path / ".dockerignore")
        self._kept = _kept(self.path, next((name for name in names if name.is_file()), None))

    def find(self, pattern: str) -> tuple[Path, ...]:
        """Return the files and directories that a source of ``COPY`` means.

        Raises:
            SpecError: there is none, or one is outside the context.
        """
        names = sorted(
            glob.glob(pattern.lstrip("/") or ".", root_dir=self.path, include_hidden=True)
        )
        paths = (self.path / name for name in names)
        found = tuple(
            path for path in paths if self._has(path) and (path.is_file() or path.is_dir())
        )
        if not found:
            raise SpecError(
                "Containerfile", f"COPY {pattern}", f"the source does not exist in {self.path}"
            )
        for path in found:
            # also of links in a circle
            if not Path(os.path.realpath(path)).is_relative_to(self.path):
                raise SpecError(
                    "Containerfile", f"COPY {pattern}", "the source must be in the build context"
                )
        return found

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file, or the contents of a directory, without what is excluded; links inside stay
        links.

        Args:
            source: one of :meth:`find`, or a path elsewhere, of which all is copied.
            target: the file, or the directory, which may exist.

        Raises:
            SpecError: a file cannot be read.
        """
        # the ignore file counts for the directory that a link names
        real = Path(os.path.realpath(source))
        try:
            if real.is_dir():
                shutil.copytree(
                    real, target, symlinks=True, dirs_exist_ok=True, ignore=self._excluded
                )
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(real, target)
        except OSError as error:  # also shutil.Error
            raise SpecError(
                "Containerfile", f"COPY {source}", f"its files must be readable ({error})"
            ) from error

    def _has(self, path: Path) -> bool:
        if self._kept is None or path == self.path or not path.is_relative_to(self.path):
            return True
        return str(path.relative_to(self.path)) in self._kept

    def _excluded(self, directory: str, names: list[str]) -> list[str]:
        paths = ((name, Path(directory) / name) for name in names)
        return [name for name, path in paths if not (self._has(path) and _is_copied(path))]


def _is_copied(path: Path) -> bool:
    # builders leave out pipes, sockets and devices
    return path.is_symlink() or path.is_file() or path.is_dir()


def _kept(context: Path, ignore_file: Path | None) -> Collection[str] | None:
    """Return the paths that an ignore file keeps, with the directories above them; None without
    such a file.
    """
    from docker.utils.build import PatternMatcher

    if ignore_file is None:
        return None
    lines = (
        line.strip() for line in ignore_file.read_text("utf-8-sig", "surrogateescape").splitlines()
    )
    kept = set(
        PatternMatcher([line for line in lines if line and not line.startswith("#")]).walk(
            str(context)
        )
    )
    return kept | {str(above) for name in kept for above in Path(name).parents}


def older_copy(
    instruction: Instruction, context: BuildContext, payload: Path, prefix: str, *, modes: Modes
) -> Iterator[str]:
    """Yield a ``COPY`` or ``ADD`` without ``--link`` and symbolic ``--chmod``, which older builders
    do not know.

    ``--link`` only makes later builds faster. Files whose modes change are copied to ``payload``,
    and changed there.

    Args:
        instruction: the instruction; others than these and their triggers are yielded as they are.
        context: the files that it copies.
        payload: a directory for changed files.
        prefix: put before the path of a changed file, which is relative to ``payload``.
        modes: the modes that the builder knows.

    Raises:
        SpecError: an exact translation does not exist.
    """
    before, verb, rest = without_onbuild(instruction)
    if verb not in ("COPY", "ADD") or instruction.heredocs:
        yield instruction.source
        return
    flags, rest = split_flags(rest)
    kept = [flag for flag in flags if not _LINK.fullmatch(flag)]
    mode = next((flag.partition("=")[2] for flag in kept if flag.startswith("--chmod=")), "")
    is_variable = modes == "octal" and "$" in mode  # the builder expands it
    if mode and not (is_mode(mode) or is_variable):
        no(instruction, _MODE_ALLOWED)
    if not mode or modes == "all" or is_variable or (modes == "octal" and mode.isdecimal()):
        yield instruction.source if kept == flags else f"{before}{verb} {' '.join([*kept, rest])}\n"
        return
    words = json_words(rest) or [word.strip("\"'") for word in split_words(rest)]
    if before:
        no(instruction, "with this builder, --chmod cannot be in ONBUILD; use ONBUILD RUN chmod")
    if len(words) < 2 or "$" in rest:
        no(
            instruction,
            "with this builder, --chmod needs sources of the build context, without variables",
        )
    if odd := next((flag for flag in kept if not flag.startswith(("--chmod=", "--chown="))), None):
        no(instruction, f"with this builder, --chmod cannot stand beside {odd}; use RUN chmod")
    if verb == "ADD" and ("://" in rest or _ARCHIVE.search(rest)):
        no(
            instruction,
            "with this builder, ADD of archives and URLs cannot have this --chmod; use RUN chmod",
        )
    found = [path for word in words[:-1] for path in context.find(word)]
    tree = payload / f"{len(list(payload.iterdir()))}" / "tree"
    tree.mkdir(parents=True)
    for path in found:
        context.copy(path, tree if path.is_dir() else tree / path.name)
    change_modes(instruction, mode, tree)
    is_file = len(found) == 1 and not found[0].is_dir()
    name = f"{tree.parent.name}/tree" + (f"/{found[0].name}" if is_file else "")
    options = " ".join(flag for flag in kept if not flag.startswith("--chmod="))
    yield f"COPY {options} {_with_prefix(prefix, name, words[-1])}\n"


def change_modes(instruction: Instruction, mode: str, directory: Path) -> None:
    """Change the modes of all in a directory, as the ``--chmod`` of an instruction.

    Raises:
        SpecError: there is no such mode.
    """
    if (
        not is_mode(mode)
        or run_process(["sh", "-c", _CHANGE_MODES, mode, str(directory)]).exit_code != 0
    ):
        no(instruction, _MODE_ALLOWED)


def _with_prefix(prefix: str, name: str, target: str) -> str:
    import json

    option, _, directory = prefix.rpartition(" ")
    words = (f"{directory}{name}", target)
    plain = (
        " ".join(words)
        if not any(re.search(r"[\s\"'\\]", word) for word in words)
        else json.dumps(words)
    )
    return f"{option} {plain}".strip()
