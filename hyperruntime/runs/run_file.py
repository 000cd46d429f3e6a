"""``run.json``: the options and facts of a run, this user's mark, and why it ended early.

The reason why a run ended before it was complete is a field that a resume removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.errors import ArchiveError, HyperRuntimeError, StorageError
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.runs.own_mark import has_own_mark, with_own_mark
from hyperruntime.storage.atomic import json_document, write_atomic
from hyperruntime.storage.run_files import MOST_JSON_BYTES, read_run_file, read_run_json
from hyperruntime.units import one_line

log = get_logger(__name__)

RUN = "run.json"
INTERRUPTED = "it was interrupted"
_ENDED = "ended"


def read_run_value(path: Path, step: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return the content of a ``run.json``, which may be foreign.

    Args:
        path: the file.
        step: what the user may do if it cannot be read, or "".

    Raises:
        ArchiveError: it cannot be read.
    """
    try:
        return parse_json(read_run_file(path, below=path.parent, most_bytes=MOST_JSON_BYTES))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        end = f"; {step}" if step else ""
        raise ArchiveError(f"{str(path)!r} cannot be read: {why}{end}") from error


def write_run_value(path: Path, value: dict[str, Any], *, mark: bool = True) -> dict[str, Any]:
    """Write a ``run.json``, and return its content.

    Args:
        path: the file.
        value: its content.
        mark: whether to mark it as this user's: the user chose or accepted what it asks for.

    Raises:
        StorageError: the file cannot be written.
    """
    value = with_own_mark(value, path.parent) if mark else value
    write_atomic(path, json_document(value))
    return value


def note_end(run_file: Path, reason: str) -> None:
    """Store the reason in ``run.json``; a failure is only logged, because the run ends for another
    reason.

    A file with this user's mark keeps it; another one gets none.

    Args:
        run_file: the file; nothing is stored if it cannot be read.
        reason: one sentence; "" removes an earlier reason.
    """
    stored = read_run_json(run_file, below=run_file.parent)
    if stored is None or stored.get(_ENDED, "") == reason:
        return
    kept = {name: value for name, value in stored.items() if name != _ENDED}
    changed = {**kept, **({_ENDED: reason} if reason else {})}
    try:
        if has_own_mark(stored, run_file.parent):
            changed = with_own_mark(changed, run_file.parent)
        write_atomic(run_file, json_document(changed))
    except StorageError as error:
        log.warning("end of the run not noted", reason=reason, error=str(error))


def end_reason(stored: Mapping[str, Any]) -> str:
    """Return the stored reason as one line that is safe to show, or "".

    Args:
        stored: the content of ``run.json``, which may be foreign.
    """
    text = stored.get(_ENDED, "")
    return one_line(text) if isinstance(text, str) else ""


def reason_of(error: BaseException) -> str:
    """Return the reason that an error gives, as one sentence."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, HyperRuntimeError):
        return one_line(str(error))
    return one_line(f"unexpected {type(error).__name__}: {error}")
