"""The methods that copy trees of files between the host and a container."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

import attrs

from hyperruntime.concurrency.blocking import run_cancellable
from hyperruntime.exec.git_owners import GitOwners
from hyperruntime.exec.options import ExecOptions
from hyperruntime.spec import ExecResult
from hyperruntime.transfer import copy as transfer
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport


class ContainerCopies:
    """Copies files, links and directories into a container and out of it; see docs/files.md."""

    _repositories: GitOwners

    def _copy(self, args: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        """Run a command in ``/``."""
        raise NotImplementedError

    def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        **options: Unpack[transfer.CopyKeywords],
    ) -> None:
        """Copy a file, link or directory of the host to exactly the path ``target`` in the
        container.

        Missing parent directories are made. Links stay links; modes and times are kept, owners are
        not. The image needs ``tar`` and ``mkdir``. If it also has ``mv`` and ``rm``, ``target``
        appears only when the copy is complete; an existing directory is merged into during the
        copy. Without ``user``, git of every user may use a repository that was copied
        (``safe.directory``).

        Args:
            source: path on the host.
            target: absolute path in the container.
            timeout_s: seconds after which the copy is stopped and its ``tar`` killed, 600 by
                default; None means never.
            user: as for :meth:`exec`; owner of the new files.
            group: as for :meth:`exec`.

        Raises:
            SpecError: ``target`` or ``timeout_s`` is invalid.
            TransferError: the source does not exist, or the container refused it (read-only, no
                space).
            TransferTimeoutError: it took longer than ``timeout_s``.
        """
        transfer.put(self._copy, source, target, transfer.copy_options(**options))
        self._repositories.note(source, target, options)

    async def aput(
        self,
        source: str | os.PathLike[str],
        target: str,
        **options: Unpack[transfer.CopyKeywords],
    ) -> None:
        """Do what :meth:`put` does without blocking the event loop; cancelling has the same effect
        as the deadline.
        """
        checked = transfer.copy_options(**options)
        await run_cancellable(
            lambda cancel_fd: transfer.put(
                self._copy, source, target, attrs.evolve(checked, cancel_fd=cancel_fd)
            )
        )
        self._repositories.note(source, target, options)

    def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        **options: Unpack[transfer.CopyKeywords],
    ) -> ExtractReport:
        """Copy a path in the container to exactly the path ``target`` of the host; the container is
        not trusted.

        Entries that could write or point outside ``target`` (absolute names, ``..``, links that
        leave the tree, devices, FIFOs) are skipped and listed in the report. ``target`` appears
        only when all data has arrived and the container's ``tar`` has ended; an existing directory
        is merged into.

        Args:
            source: absolute path in the container.
            target: path on the host; its parent directory must exist.
            limits: limits on the copied data; None is 8 GiB and 200,000 files, directories and
                links.
            timeout_s: seconds after which the copy is stopped and its ``tar`` killed, 600 by
                default; None means never. A partial copy is then removed, and a complete one is put
                in place, before this returns.
            user: as for :meth:`exec`.
            group: as for :meth:`exec`.

        Raises:
            SpecError: ``source`` or ``timeout_s`` is invalid.
            TransferError: the source does not exist, the archive is truncated, or the host cannot
                write it.
            TransferTimeoutError: it took longer than ``timeout_s``.
            UnsafeArchiveError: the data exceeds ``limits``.
        """
        return transfer.get(self._copy, source, target, transfer.copy_options(**options), limits)

    async def aget(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        **options: Unpack[transfer.CopyKeywords],
    ) -> ExtractReport:
        """Do what :meth:`get` does without blocking the event loop; cancelling has the same effect
        as the deadline.
        """
        checked = transfer.copy_options(**options)
        return await run_cancellable(
            lambda cancel_fd: transfer.get(
                self._copy, source, target, attrs.evolve(checked, cancel_fd=cancel_fd), limits
            )
        )
