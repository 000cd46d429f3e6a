"""The backend: files and commands of an agent are those of one container."""

from __future__ import annotations

from typing import Self

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import shared_runtime, start_container
from hyperruntime.transfer.file_errors import (
    FileError,
    PathIsDirectoryError,
    PathNotFoundError,
    PathPermissionError,
)

_WORDS: dict[type[FileError], str] = {
    PathNotFoundError: "file_not_found",
    PathPermissionError: "permission_denied",
    PathIsDirectoryError: "is_directory",
}


class Sandbox(BaseSandbox):
    """A container as the backend of an agent; the base class makes its other tools of these.

    Attributes:
        container: the container.
    """

    def __init__(self, container: hr.Container, *, timeout_s: float | None = 120.0) -> None:
        """Wrap a running container, which the caller closes.

        Args:
            container: the container.
            timeout_s: seconds for a command that has no limit of its own; None means no limit.
        """
        self.container = container
        self._timeout_s = timeout_s

    @classmethod
    def start(cls, spec: hr.ContainerSpec | str = "base", runtime: str | None = None) -> Self:
        """Return the backend for a new container, which ends with the process unless it is closed
        before.

        Args:
            spec: the container; or its image, or the name of a recipe.
            runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.

        Raises:
            HyperRuntimeError: the container cannot be started; the message says why.
        """
        if isinstance(spec, str):
            return cls(start_container(spec, {}, runtime))
        return cls(shared_runtime(runtime).container(spec))

    @property
    def id(self) -> str:
        """The container's name."""
        return self.container.name

    def close(self) -> None:
        """End the container; may be called again."""
        self.container.close()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command, and return both streams of its output together.

        Args:
            command: text for ``/bin/sh``.
            timeout: seconds after which it is ended with all its processes; 0 means no limit, None
                that of the backend.
        """
        limit = self._timeout_s if timeout is None else timeout or None
        result = self.container.exec(["/bin/sh", "-c", command], timeout_s=limit, merge_output=True)
        output = result.stdout.decode(errors="replace")
        if result.timed_out:
            output += f"\n[the command timed out after {limit:g} s]"
        return ExecuteResponse(
            output=output, exit_code=result.exit_code, truncated=result.truncated
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files in one call, and return the result of each."""
        errors: dict[str, str] = {path: "invalid_path" for path, _ in files if not _is_valid(path)}
        valid = {path: data for path, data in files if path not in errors}
        self.container.write_files(
            valid, on_error=lambda error: errors.update({error.path: _word(error)})
        )
        return [FileUploadResponse(path=path, error=errors.get(path)) for path, _ in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files in one call, and return the content or the error of each."""
        errors: dict[str, str] = {path: "invalid_path" for path in paths if not _is_valid(path)}
        valid = [path for path in paths if path not in errors]
        found = self.container.read_files(
            valid, on_error=lambda error: errors.update({error.path: _word(error)})
        )
        return [
            FileDownloadResponse(path=path, content=found.get(path), error=errors.get(path))
            for path in paths
        ]


def _is_valid(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _word(error: FileError) -> str:
    return _WORDS.get(
        type(error), "invalid_path" if isinstance(error, NotADirectoryError) else str(error)
    )
