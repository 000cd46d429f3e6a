"""The methods that read and write single files, for containers and for leases."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, Unpack, cast

import attrs

from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.exec.options import ExecOptions
from hyperruntime.spec import ExecResult
from hyperruntime.transfer.copy import CopyKeywords, copy_options
from hyperruntime.transfer.file_calls import (
    FILE_TIMEOUT_S,
    READ_LIMIT_BYTES,
    FileCall,
    FileStat,
    OnError,
    list_call,
    read_call,
    read_calls,
    stat_call,
    write_call,
)

T = TypeVar("T")
P = ParamSpec("P")

_UNDO_TIMEOUT_S = 5.0


def _awaited(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the twin of a method of :class:`ContainerFiles` for event loops."""

    @functools.wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        given = cast(dict[str, Any], options)
        return await run_cancellable(
            lambda cancel_fd: cast(Any, method)(*args, **given, cancel_fd=cancel_fd)
        )

    run.__doc__ = f"Do what :meth:`{method.__name__}` does without blocking the event loop."
    return run


class ContainerFiles:
    """Reads and writes single files of a container, each call in one exec; see docs/files.md.

    Paths are absolute; links are followed as the kernel does. The options of all methods are those
    of :meth:`Container.put`: ``timeout_s`` (60 by default), ``user`` and ``group``.
    """

    def _copy(self, args: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        """Run a command in ``/``."""
        raise NotImplementedError

    def read_file(
        self, path: str, *, limit_bytes: int = READ_LIMIT_BYTES, **options: Unpack[CopyKeywords]
    ) -> bytes:
        """Return the bytes of a file; also of files of ``/proc``, pipes and devices, up to the
        limit and the deadline.

        Args:
            path: absolute path in the container.
            limit_bytes: most bytes that the file may have.

        Raises:
            FileNotFoundError: it does not exist.
            PermissionError: the user may not read it.
            IsADirectoryError: it is a directory.
            NotADirectoryError: a part of its path is not a directory.
            FileTooLargeError: it has more than ``limit_bytes``.
            FileError: it cannot be read for another reason; base of these errors, which are also
                HyperRuntimeErrors.
            TransferTimeoutError: it took longer than ``timeout_s``, such as a pipe into which
                nothing is written.
            SpecError: an argument is invalid.
        """
        chosen = _options(options)
        return self._call(read_call(path, limit_bytes, chosen.timeout_s), chosen)

    def read_files(
        self,
        paths: Iterable[str],
        *,
        limit_bytes: int = READ_LIMIT_BYTES,
        on_error: OnError = None,
        **options: Unpack[CopyKeywords],
    ) -> dict[str, bytes]:
        """Return the bytes of many files, by path, in the time of one exec and a process for each
        file.

        Args:
            paths: absolute paths in the container.
            limit_bytes: most bytes that all files together may have.
            on_error: called with the error of each file that cannot be read, which the result then
                lacks; None raises the first one.

        Raises:
            HyperRuntimeError: as :meth:`read_file`.
        """
        chosen = _options(options)
        found = dict[str, bytes]()
        for call in read_calls(paths, limit_bytes, chosen.timeout_s, on_error):
            part: dict[str, bytes] = self._call(call, chosen)
            found |= part
        return found

    def write_file(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        parents: bool = True,
        **options: Unpack[CopyKeywords],
    ) -> None:
        """Write a whole file. Readers see the old content or the new one, and an error leaves the
        old one.

        An existing file keeps its mode and owner; a link stays, and the file that it leads to is
        written. A hard link is separated from its other names. Where a rename is impossible, the
        content is written into the file, so that readers may see a part of it: devices, pipes,
        mount points, files of another user, and directories that the user may not write.

        Args:
            path: absolute path in the container.
            data: the content.
            mode: permission bits; None keeps those of an existing file, and leaves those of a new
                one to the umask.
            parents: whether missing directories are made.

        Raises:
            FileNotFoundError: a directory is missing and ``parents`` is false, or it is a link that
                leads to no file.
            HyperRuntimeError: as :meth:`read_file`; also a FileError whose ``errno`` is ENOSPC or
                EROFS.
        """
        self.write_files({path: data}, mode=mode, parents=parents, **options)

    def write_files(
        self,
        files: Mapping[str, bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        on_error: OnError = None,
        **options: Unpack[CopyKeywords],
    ) -> None:
        """Write many files in one exec, each as :meth:`write_file` does.

        A file that fails does not stop the others. But if the content of one cannot be stored, as
        on a full disk, all after it fail too.

        Args:
            files: the content of each absolute path in the container.
            mode: as for :meth:`write_file`, for all files.
            parents: whether missing directories are made.
            on_error: called with the error of each file that cannot be written; None raises the
                first one, at the end.

        Raises:
            HyperRuntimeError: as :meth:`write_file`.
        """
        chosen = _options(options)
        if call := write_call(
            files, mode=mode, parents=parents, timeout_s=chosen.timeout_s, on_error=on_error
        ):
            self._call(call, chosen)

    def stat(
        self, path: str, *, follow_symlinks: bool = True, **options: Unpack[CopyKeywords]
    ) -> FileStat:
        """Return the facts of a path; the image needs ``stat``.

        Args:
            path: absolute path in the container.
            follow_symlinks: whether the facts are those of the file that a link leads to.

        Raises:
            HyperRuntimeError: as :meth:`read_file`.
        """
        chosen = _options(options)
        return self._call(
            stat_call(path, follow_symlinks=follow_symlinks, timeout_s=chosen.timeout_s), chosen
        )

    def listdir(self, path: str, **options: Unpack[CopyKeywords]) -> list[str]:
        """Return the sorted names in a directory, as :func:`os.listdir` does; the image needs no
        program for it.

        Args:
            path: absolute path in the container.

        Raises:
            HyperRuntimeError: as :meth:`read_file`.
        """
        chosen = _options(options)
        return self._call(list_call(path, chosen.timeout_s), chosen)

    aread_file = _awaited(read_file)
    aread_files = _awaited(read_files)
    awrite_file = _awaited(write_file)
    awrite_files = _awaited(write_files)
    astat = _awaited(stat)
    alistdir = _awaited(listdir)

    def _call(self, call: FileCall[T], options: ExecOptions) -> T:
        result = None
        try:
            result = self._copy(call.args, _for_call(call, options))
        finally:
            if call.undo is not None and (result is None or result.timed_out):
                with suppress(HyperRuntimeError):  # best effort: the container may be gone
                    undo = attrs.evolve(options, cancel_fd=None, timeout_s=_UNDO_TIMEOUT_S)
                    self._copy(call.undo.args, _for_call(call.undo, undo))
        return call.parse(result)


def _options(options: CopyKeywords) -> ExecOptions:
    chosen: CopyKeywords = {"timeout_s": FILE_TIMEOUT_S, **options}
    return copy_options(**chosen)


def _for_call(call: FileCall[T], options: ExecOptions) -> ExecOptions:
    return attrs.evolve(
        options, input=call.input, env=call.env, output_limit_bytes=call.output_limit_bytes
    )
