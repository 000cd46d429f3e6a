"""The directory for the files of a head's jobs, which nodes must see; those of dead heads are
removed.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from hyperruntime.host.batch_job import BatchJob
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.storage.atomic import make_directory, storage_errors
from hyperruntime.storage.run_files import read_run_json

# until a file is seen on another machine; Linux shows a change of a directory on NFS after at most
# 60 s. Source: nfs(5), acdirmax
SEEN_S = 90.0
JOBS_PREFIX = ".hyperrun-jobs-"  # begins the name of a directory that belongs to no run
_OWNER = "owner.json"
_NO_RECORD_S = 60.0  # until a directory without its owner's record counts as left


@contextmanager
def job_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory and remove it afterwards; before and after, remove those of killed
    heads too.

    Args:
        parent: made if it is missing.
        prefix: begins the directory's name.

    Raises:
        StorageError: the directory or its parent cannot be made.
    """
    make_directory(parent)
    _remove_left(parent, prefix)
    with storage_errors(parent):
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        job = BatchJob.current()
        record = {
            "owner": attrs.asdict(OwnerIdentity.current()),
            "job": None if job is None else attrs.asdict(job),
        }
        with storage_errors(made):
            (made / _OWNER).write_text(json.dumps(record))
        yield made
    finally:
        remove_jobs(made, prefix)
        _remove_left(parent, prefix)


def remove_jobs(directory: Path, prefix: str) -> None:
    """Remove a directory for files of jobs. It is renamed first, so that jobs that still run cannot
    write to it.
    """
    gone = directory.with_name(f"{prefix}gone-{secrets.token_hex(8)}")
    with suppress(OSError):
        directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove the directories of dead heads."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError, TypeError, ValueError, KeyError):
            if _is_left(left):
                remove_jobs(left, prefix)


def _is_left(directory: Path) -> bool:
    """Return whether the head is dead; for another machine, whether the batch system says that its
    job has ended.
    """
    if not (directory / _OWNER).exists():
        return time.time() - directory.stat().st_mtime > _NO_RECORD_S
    record = read_run_json(directory / _OWNER, below=directory) or {}
    state = OwnerIdentity.from_record(record["owner"]).state()
    job = BatchJob.from_record(record["job"] or {})
    return state == "dead" or (
        state == "elsewhere" and job is not None and (job.was_requeued() or job.is_over())
    )
