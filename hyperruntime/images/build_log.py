"""Keep the whole output of a build in a log file, and find the step that failed."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import ImageBuildError, StorageError, write_error
from hyperruntime.host.cache_dir import cache_directory

_KEPT = 20
_TAIL_LINES = 12
# How Podman, Docker and Apptainer announce a step.
_STEP = re.compile(
    r"(?:STEP|Step) \d+(?:/\d+)?\s?: (?P<step>.*)|INFO:\s+Running (?P<section>\w+) scriptlet"
)


class BuildLog(Closing):
    """Writes each line of one build to a log file, and passes it on.

    Attributes:
        path: the log file.
        step: the step that started last, or "".
    """

    def __init__(self, reference: str, on_output: Callable[[str], None] | None) -> None:
        """Create the file with mode 0600, remove all but the newest twenty log files, and pass on
        the file's path.

        Args:
            reference: the image; part of the file name.
            on_output: called with each line; None to only write the file.

        Raises:
            StorageError: the cache directory cannot be written.
        """
        self.step = ""
        self._failed = self._told = False
        self._hand_on = on_output or (lambda line: None)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        folder = cache_directory() / "builds"
        name = re.sub(r"[^\w.-]+", "_", reference)[-80:]
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{name}-{os.getpid()}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise cannot_write(folder, error) from error
        for path in sorted(folder.glob("*.log"))[:-_KEPT]:
            path.unlink(missing_ok=True)
        self._hand_on(f"the whole output is kept in {self.path}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __call__(self, line: str) -> None:
        """Write a line of output, and pass it on.

        Raises:
            StorageError: the file cannot be written.
        """
        try:
            os.write(self._descriptor, f"{line}\n".encode(errors="replace"))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if match := _STEP.match(line):
            self.step = (match["step"] or f"%{match['section']}").strip()
            self._tail.clear()
            self._told = False
        # BuildKit shows the failed step again, then other texts
        elif self._failed and line == "------":
            self._told = bool(self._tail)
        elif line.strip() and not self._told and not line.startswith("--> "):  # of the builder
            self._failed = self._failed or line.startswith('ERROR: process "')
            self._tail.append(line)
        self._hand_on(line)

    def failure(self, reference: str, error: ImageBuildError) -> ImageBuildError:
        """Return an engine's error as one with the failed step, its last lines and the path of the
        log file.

        Args:
            reference: the image.
            error: the error of the engine.
        """
        if not self.step:
            return ImageBuildError(f"{error}\nthe whole output is in {self.path}")
        lines = "\n".join(f"    {line}" for line in self._tail)
        what = f"; its last lines:\n{lines}" if lines else f" without output: {error}"
        return ImageBuildError(
            f"image {reference!r} was not built: the step `{self.step}` failed{what}\n"
            f"the whole output is in {self.path}"
        )


def cannot_write(path: Path, error: OSError) -> StorageError:
    """Return the error for a file or a directory of the cache."""
    return write_error(
        f"{path} cannot be written: {error}; set XDG_CACHE_HOME to a writable directory with room",
        error,
    )
