"""The whole output of a build in a file that stays, and the step at which it failed."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from hyperruntime.errors import ImageBuildError, StorageError
from hyperruntime.host.cache_dir import cache_directory

_KEPT = 20
_TAIL_LINES = 12
# Podman, Docker and Apptainer each announce a step in their own words.
_STEP = re.compile(r"(?:STEP|Step) \d+(?:/\d+)?\s?: (?P<step>.*)|INFO:\s+Running (?P<section>\w+) scriptlet")


class BuildLog:
    """Writes each line of one build to a file, and hands it on.

    Attributes:
        path: the file.
        step: the step that was last begun, or "".
    """

    def __init__(self, reference: str, on_output: Callable[[str], None] | None) -> None:
        """Make the file, which only its user can read; the newest twenty are kept.

        Raises:
            StorageError: the cache directory cannot be written.
        """
        self.step = ""
        self._hand_on = on_output or (lambda line: None)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        folder = cache_directory() / "builds"
        name = re.sub(r"[^\w.-]+", "_", reference)[-80:]
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{name}-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        _forget_old(folder)

    def __enter__(self) -> BuildLog:
        """Say where the output goes."""
        self._hand_on(f"the whole output is kept in {self.path}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __call__(self, line: str) -> None:
        """Take a line of output."""
        try:
            os.write(self._descriptor, f"{line}\n".encode(errors="replace"))
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        if match := _STEP.match(line):
            self.step = (match["step"] or f"%{match['section']}").strip()
            self._tail.clear()
        elif line.strip():
            self._tail.append(line)
        self._hand_on(line)

    def failure(self, reference: str, error: ImageBuildError) -> ImageBuildError:
        """Return an engine's error with the step that failed, its last lines and the file's name."""
        if not self.step:
            return ImageBuildError(f"{error}\nthe whole output is in {self.path}")
        lines = "\n".join(f"    {line}" for line in self._tail)
        return ImageBuildError(
            f"image {reference!r} was not built: the step `{self.step}` failed; its last lines:\n{lines}\n"
            f"the whole output is in {self.path}"
        )


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be written: {error}; set XDG_CACHE_HOME to a directory of yours with room")


def _forget_old(folder: Path) -> None:
    for path in sorted(folder.glob("*.log"))[:-_KEPT]:
        path.unlink(missing_ok=True)
