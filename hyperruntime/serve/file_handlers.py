"""Handlers for the files of containers: a file, facts of a path, names in a directory, an archive
of a tree.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Mapping

import attrs

from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.container import Container
from hyperruntime.errors import SpecError, TransferTimeoutError
from hyperruntime.exec.options import ExecKeywords, Stream
from hyperruntime.serve.containers import Containers
from hyperruntime.serve.exec_handlers import finished
from hyperruntime.serve.file_models import (
    DirectoryNames,
    FileFacts,
    FilePath,
    FileToRead,
    FileToWrite,
    PathToLookAt,
)
from hyperruntime.settings.reader import read, to_json
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.transfer.copy import tar_read_all
from hyperruntime.transfer.file_calls import READ_LIMIT_BYTES
from hyperruntime.transfer.file_errors import error_of_text
from hyperruntime.units import format_duration
from hyperruntime.wire.peer import Answer, Call, Handler

_MODE = re.compile(r"0?[0-7]{1,4}")
_NOTES_BYTES = 4096
# Archives the content of a directory, or any other file itself.
_READ = """
[ -e "$1" ] || [ -L "$1" ] || { echo "No such file or directory" >&2; exit 3; }
if [ -d "$1" ]; then exec tar -cf - -C "$1" .; fi
exec tar -cf - -C "$2" -- "./$3"
"""
_WRITE = 'mkdir -p -- "$1" && exec tar -xpof - -C "$1"'


class FileHandlers:
    """Reads and writes files in the containers of a service.

    Attributes:
        handlers: ``file.read``, ``file.write``, ``file.stat``, ``directory.list``, ``archive.read``
            and ``archive.write``; bodies are bytes.
    """

    def __init__(self, containers: Containers) -> None:
        """Read nothing yet."""
        self._containers = containers
        self.handlers: Mapping[str, Handler] = {
            "file.read": self._read,
            "file.write": self._write,
            "file.stat": self._stat,
            "directory.list": self._list,
            "archive.read": self._read_archive,
            "archive.write": self._write_archive,
        }

    async def _read(self, call: Call) -> Answer:
        asked = read(FileToRead, call.args)
        limit_bytes = (
            READ_LIMIT_BYTES
            if asked.limit_bytes is None
            else min(asked.limit_bytes, READ_LIMIT_BYTES)
        )
        with self._containers.using(asked.container) as served:
            body = await served.container.aread_file(
                asked.path, limit_bytes=limit_bytes, user=asked.user, timeout_s=asked.deadline_s
            )
        return Answer(body=body)

    async def _write(self, call: Call) -> Answer:
        asked = read(FileToWrite, call.args)
        if asked.mode is not None and not _MODE.fullmatch(asked.mode):
            raise SpecError("mode", asked.mode, "octal digits, such as 0644")
        mode = None if asked.mode is None else int(asked.mode, 8)
        with self._containers.using(asked.container) as served:
            await served.container.awrite_file(
                asked.path,
                call.body,
                mode=mode,
                parents=asked.parents,
                user=asked.user,
                timeout_s=asked.deadline_s,
            )
        return Answer()

    async def _stat(self, call: Call) -> Answer:
        asked = read(PathToLookAt, call.args)
        with self._containers.using(asked.container) as served:
            found = await served.container.astat(
                asked.path,
                follow_symlinks=asked.follow_symlinks,
                user=asked.user,
                timeout_s=asked.deadline_s,
            )
        return Answer(to_json(FileFacts(**{**attrs.asdict(found), "mode": f"{found.mode:04o}"})))

    async def _list(self, call: Call) -> Answer:
        asked = read(FilePath, call.args)
        with self._containers.using(asked.container) as served:
            names = await served.container.alistdir(
                asked.path, user=asked.user, timeout_s=asked.deadline_s
            )
        return Answer(to_json(DirectoryNames(names=tuple(names))))

    async def _read_archive(self, call: Call) -> Answer:
        """Emit a tar archive of a directory's content, or of a single file."""
        asked = read(FilePath, call.args)
        check_inside_path("path", asked.path)
        parent, name = posixpath.split(posixpath.normpath(asked.path))

        async def write(stream: Stream, chunk: bytes) -> None:
            if stream == "stdout":
                await call.emit(Answer(body=chunk))

        with self._containers.using(asked.container) as served:
            streams = LoopStreams()
            words = (_READ, "archive", asked.path, parent, name or ".")
            result = await _run(
                served.container, words, asked, streams, {"on_output": streams.output(write)}
            )
        if not tar_read_all(result):
            raise error_of_text(asked.path, result.stderr.decode(errors="replace"))
        return Answer()

    async def _write_archive(self, call: Call) -> Answer:
        """Extract a tar archive, which comes as the body, into a directory, which is made if it
        does not exist.
        """
        asked = read(FilePath, call.args)
        check_inside_path("path", asked.path)
        with self._containers.using(asked.container) as served:
            streams = LoopStreams()
            source = streams.input(call.read) if call.read is not None else call.body
            result = await _run(
                served.container, (_WRITE, "archive", asked.path), asked, streams, {"input": source}
            )
        if result.exit_code != 0:
            raise error_of_text(asked.path, result.stderr.decode(errors="replace"))
        return Answer()


async def _run(
    container: Container,
    words: tuple[str, ...],
    asked: FilePath,
    streams: LoopStreams,
    options: ExecKeywords,
) -> ExecResult:
    """Run one of the scripts above with the options of a copy."""
    options = {**options, "user": asked.user, "workdir": "/", "env": {"LC_ALL": "C"}}
    limit_s = asked.archive_deadline_s
    options |= {"timeout_s": limit_s, "output_limit_bytes": _NOTES_BYTES}
    running = asyncio.ensure_future(container.aexec(("/bin/sh", "-c", *words), **options))
    result = await finished(running, streams, limit_s)
    if result.timed_out:
        raise TransferTimeoutError(
            f"the archive of {asked.path!r} took longer than {format_duration(limit_s)}; "
            "copy parts of it, or raise timeout_s"
        )
    return result
