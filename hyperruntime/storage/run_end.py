"""The reason why a run ended before it was complete: a field of its ``run.json``, which a resume
removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperruntime.errors import HyperRuntimeError, StorageError
from hyperruntime.logs import get_logger
from hyperruntime.storage.atomic import json_document, write_atomic
from hyperruntime.storage.own_mark import has_own_mark, with_own_mark
from hyperruntime.storage.run_files import read_run_json
from hyperruntime.units import one_line

log = get_logger(__name__)

INTERRUPTED = "it was interrupted"
_ENDED = "ended"


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
