"""Copy file trees into and out of a container with the container's own ``tar``, which is untrusted.

Design: docs/design/exec.md#copies.
"""

from __future__ import annotations

import os
import posixpath
import secrets
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypedDict, cast

import attrs

from hyperruntime.errors import HyperRuntimeError, TransferError, TransferTimeoutError
from hyperruntime.exec.execution import CancelledExecError
from hyperruntime.exec.options import ExecOptions
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport
from hyperruntime.transfer.tar_pipe import LateError, Receiver, Sender
from hyperruntime.units import GIB, format_duration

log = get_logger(__name__)

Exec = Callable[[Sequence[str], ExecOptions], ExecResult]

_NO_FILE = 3
# Search the usual directories for tar too: the PATH of the container's environment may lack them.
_PREPARE = """PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for program in $needed; do
    command -v $program >/dev/null || { echo "the image has no $program; use an image that has it" >&2; exit 5; }
done
if tar -b 1024 -cf /dev/null -C / -T /dev/null 2>/dev/null; then b="-b 1024"; else b=; fi
"""  # Large records save system calls. GNU tar and bsdtar support -b; busybox does not.
# $1/$2 is the target; $1/$3 is the staging directory, from which the target is moved into place.
_PUT = (
    f'needed="tar mkdir"\n{_PREPARE}'
    """
if { [ -d "$1/$2" ] && [ ! -L "$1/$2" ]; } || ! command -v mv >/dev/null || ! command -v rm >/dev/null; then
    mkdir -p -- "$1" && exec tar $b -xpof - -C "$1"
    exit
fi
mkdir -p -m 700 -- "$1/$3" && tar $b -xpof - -C "$1/$3" && {
    if [ -L "$1/$2" ] || [ -d "$1/$3/$2" ]; then rm -f -- "$1/$2"; fi
    mv -f -- "$1/$3/$2" "$1/$2"
}
code=$?
rm -rf -- "$1/$3"
exit $code
"""
)
_FORGET = f'needed=rm\n{_PREPARE}rm -rf -- "$1/$3"'
_GET = (
    f"needed=tar\n{_PREPARE}"
    """
[ -e "$1/$2" ] || [ -L "$1/$2" ] || { echo "no such file or directory" >&2; exit 3; }
if [ -L "$1/$2" ] && real=$(readlink -f "$1/$2") && [ -e "$real" ]; then set -- "${real%/*}/" "${real##*/}"; fi
exec tar $b -cf - -C "$1" -- "./$2"
"""
)
_OUTPUT_BYTES = 65536
_FORGET_TIMEOUT_S = 5.0
# enough for the 8 GiB of DEFAULT_LIMITS at 14 MiB/s, below the rate of a slow network disk
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_LIMITS = ExtractLimits(max_bytes=8 * GIB)


class CopyKeywords(TypedDict, total=False):
    """Keyword arguments of a copy; :meth:`Container.put` describes them."""

    timeout_s: float | None
    user: str | RunAs | None
    group: str | None


def copy_options(
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
    user: str | RunAs | None = None,
    group: str | None = None,
    cancel_fd: int | None = None,
) -> ExecOptions:
    """Return the exec options of a copy.

    Args:
        timeout_s: seconds until the copy is stopped; None for no deadline.
        user: user that runs ``tar``; None for the container's default.
        group: name of the exec group, as in :meth:`Container.exec`.
        cancel_fd: the copy is stopped when this becomes readable.

    Raises:
        SpecError: ``timeout_s`` is not a positive number.
    """
    return ExecOptions(
        timeout_s=timeout_s,
        output_limit_bytes=_OUTPUT_BYTES,
        user=user,
        group=group,
        cancel_fd=cancel_fd,
    ).checked()


def put(run: Exec, source: str | os.PathLike[str], target: str, options: ExecOptions) -> None:
    """Copy ``source`` on the host to ``target`` in the container; see :meth:`Container.put`.

    Args:
        run: runs a command in the container.
        source: file, directory or link on the host.
        target: absolute path in the container.
        options: from :func:`copy_options`.

    Raises:
        SpecError: ``target`` is not a valid path in the container.
        TransferTimeoutError: the deadline passed.
        TransferError: the source cannot be read, or ``tar`` failed.
    """
    check_inside_path("target", target)
    shown = os.fspath(source)
    if not os.path.lexists(source):
        raise TransferError(f"cannot copy {shown!r} into the container: no such file or directory")
    parent, name = posixpath.split(posixpath.normpath(target))
    words = (parent, name or ".", f".hyperruntime-{secrets.token_hex(8)}")
    archive = cast(BinaryIO, Sender(source, name or "."))
    result = None
    try:
        result = run(_command(_PUT, *words), attrs.evolve(options, input=archive))
    finally:
        if result is None or result.exit_code != 0:
            _forget(run, words, options)
    if result.timed_out:
        raise _late(f"{shown!r} was not copied to {target!r} in the container", options)
    if result.exit_code != 0:
        raise TransferError(f"cannot copy {shown!r} to {target!r} in the container: {_why(result)}")


def get(
    run: Exec,
    source: str,
    target: str | os.PathLike[str],
    options: ExecOptions,
    limits: ExtractLimits | None = None,
) -> ExtractReport:
    """Copy ``source`` in the container to ``target`` on the host; see :meth:`Container.get`.

    Args:
        run: runs a command in the container.
        source: absolute path in the container.
        target: path on the host.
        options: from :func:`copy_options`.
        limits: maximum size of the archive; None for ``DEFAULT_LIMITS``.

    Raises:
        SpecError: ``source`` is not a valid path in the container.
        TransferTimeoutError: the deadline passed.
        UnsafeArchiveError: the archive exceeds a limit, or no member of it may be written.
        TransferError: the source does not exist, ``tar`` failed, or the target cannot be written.
    """
    check_inside_path("source", source)
    parent, name = posixpath.split(posixpath.normpath(source))
    result = None
    receiver = Receiver(target, limits or DEFAULT_LIMITS, options.cancel_fd)
    options = attrs.evolve(options, on_output=receiver.take, cancel_fd=receiver.cancel_fd)
    try:
        receiver.start(options.timeout_s)
        result = run(_command(_GET, parent, name or "."), options)
        if result.timed_out:
            raise LateError
        if tar_read_all(result):
            receiver.finish()
    except LateError:
        raise _late(
            f"{source!r} was not copied out of the container to {os.fspath(target)!r}", options
        ) from None
    except CancelledExecError:
        if receiver.error is None:
            raise
    finally:
        receiver.stop()
    if result is not None and result.exit_code == _NO_FILE:
        raise TransferError(
            f"cannot copy {source!r} out of the container: no such file or directory"
        )
    if receiver.error is not None:
        raise receiver.error
    if receiver.report is None:
        raise TransferError(f"{source!r} was not copied out of the container: {_why(result)}")
    return receiver.report


def _command(script: str, *words: str) -> list[str]:
    return ["/bin/sh", "-c", script, "copy", *words]


def _forget(run: Exec, words: Sequence[str], options: ExecOptions) -> None:
    """Remove the staging directory that an unfinished copy left in the container."""
    options = attrs.evolve(options, cancel_fd=None, timeout_s=_FORGET_TIMEOUT_S)
    try:
        run(_command(_FORGET, *words), options)
    except HyperRuntimeError as error:  # best effort: the container may be gone
        log.debug("copy not removed", directory=words[0], error=str(error))


def _late(what: str, options: ExecOptions) -> TransferTimeoutError:
    return TransferTimeoutError(
        f"{what} within {format_duration(options.timeout_s or 0)}, so the copy was stopped; "
        "raise timeout_s if it only needs more time"
    )


def tar_read_all(result: ExecResult) -> bool:
    """Return whether ``tar`` put all files into its archive.

    Source: GNU tar exits with 1 if a file changed while it was read, and with 2 on errors. busybox
    and bsdtar exit with 1 on errors, and say at the end that this exit was delayed.
    """
    return result.exit_code == 0 or (
        result.exit_code == 1 and b"xit delayed from previous errors" not in result.stderr
    )


def _why(result: ExecResult | None) -> str:
    if result is None:
        return "the command was stopped"
    text = result.stderr.decode(errors="replace").strip().splitlines()
    return text[0] if text else f"tar failed with exit code {result.exit_code}"
