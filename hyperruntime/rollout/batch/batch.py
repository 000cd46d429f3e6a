"""A batch: an agent works on each row of prompts in its own slot; nothing is scored.

A row is settled when its line (done or failed) is appended to ``results.jsonl``. A batch can be killed at any time: it
resumes with the rows that have no line, so no row is lost or settled twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.concurrency.cancellation import check_cancelled
from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.batch.prompts import PromptRow
from hyperruntime.rollout.run_files.run_dir import Journal, owned
from hyperruntime.storage.atomic import json_line, make_directory, storage_errors, sync_directory

log = get_logger(__name__)

RESULTS = "results.jsonl"
DONE, FAILED = "done", "failed"
_ERROR_CHARACTERS = 2000

Attend = Callable[[PromptRow], Awaitable[Mapping[str, Any]]]
"""Works on a row and returns JSON values for its line; an exception is the row's failure."""


@attrs.frozen(kw_only=True)
class BatchSummary:
    """The result of a batch.

    Attributes:
        rows: number of all rows.
        done: rows completed in this call or before.
        failed: rows failed in this call or before.
        skipped: rows that were settled before this call.
        duration_s: seconds of this call.
    """

    rows: int
    done: int
    failed: int
    skipped: int
    duration_s: float


@attrs.frozen(kw_only=True)
class BatchOptions:
    """Batch options.

    Attributes:
        parallel: maximum rows at the same time.
        attempts: maximum attempts of a row before it counts as failed.
        retry_failed: whether to retry rows that failed before this call.
    """

    parallel: int = 8
    attempts: int = 2
    retry_failed: bool = False

    def __attrs_post_init__(self) -> None:
        """Validate the numbers."""
        for name in ("parallel", "attempts"):
            if getattr(self, name) < 1:
                raise SpecError(name, getattr(self, name), "a whole number, at least 1")


def iter_results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of settled rows; truncated lines are logged and skipped.

    Raises:
        StorageError: the file exists but cannot be read.
    """
    for _, value in _lines(path):
        yield value


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each valid line as bytes and as a JSON value."""
    with storage_errors(path), suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                log.warning("torn line skipped", file=str(path), line=number)
                continue
            if isinstance(value, dict) and isinstance(value.get("id"), str) and value.get("status") in (DONE, FAILED):
                yield line.rstrip(b"\n") + b"\n", value


async def run_batch(
    rows: Sequence[PromptRow],
    attend: Attend,
    output: Path,
    options: BatchOptions = BatchOptions(),
    on_settled: Callable[[Mapping[str, Any]], None] = lambda line: None,
) -> BatchSummary:
    """Work on every row that has no result in ``output`` yet.

    Args:
        rows: started in this order.
        attend: works on one row.
        output: directory of ``results.jsonl``; created if missing.
        options: batch options.
        on_settled: called with each new line.

    Raises:
        SpecError: a row has the id of a settled row but different content.
        RunLockedError: another live process owns this directory.
        LeaseLostError: another process took over the directory.
        StorageError: a result cannot be written; settled rows stay settled.
    """
    started = time.monotonic()
    make_directory(output)
    with owned(output):
        path = output / RESULTS
        known = _settled(rows, path, retry_failed=options.retry_failed)
        todo = [row for row in rows if row.id not in known]
        new: dict[str, str] = {}
        journal = Journal(path)

        async def settle(row: PromptRow) -> None:
            line = await _line(row, attend, options.attempts)
            await asyncio.shield(journal.add(json_line(line)))
            new[row.id] = line["status"]
            on_settled(line)

        try:
            await _each(todo, settle, options.parallel)
        finally:
            await journal.close()
    states = [*new.values(), *known.values()]
    return BatchSummary(
        rows=len(rows),
        done=states.count(DONE),
        failed=states.count(FAILED),
        skipped=len(known),
        duration_s=time.monotonic() - started,
    )


async def _each(rows: Sequence[PromptRow], settle: Callable[[PromptRow], Awaitable[None]], parallel: int) -> None:
    """Settle all rows, ``parallel`` at a time; the first error cancels the others."""
    waiting = iter(rows)

    async def work() -> None:
        for row in waiting:
            await settle(row)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(rows))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _line(row: PromptRow, attend: Attend, attempts: int) -> dict[str, Any]:
    """Work on a row until it is done or has no attempts left; return its line."""
    facts: dict[str, Any] = {"id": row.id, "row": dict(row.data), "digest": row.digest, "started_at": time.time()}
    for attempt in itertools.count(1):
        facts["attempts"] = attempt
        try:
            line = {**facts, "status": DONE, "error": None, **await attend(row)}
            json_line(line)  # a result that is not JSON fails this row, not the batch
            return line
        except Exception as error:  # noqa: BLE001 - any exception is this row's failure
            check_cancelled()
            log.warning("row failed", row=row.id, attempt=attempt, kind=type(error).__name__, error=str(error)[:300])
            if attempt >= attempts or not isinstance(error, HyperRuntimeError) or isinstance(error, SpecError):
                said = {"kind": type(error).__name__, "message": str(error)[:_ERROR_CHARACTERS]}
                return {**facts, "status": FAILED, "error": said}
    raise AssertionError  # a count has no end


def _settled(rows: Iterable[PromptRow], path: Path, *, retry_failed: bool) -> dict[str, str]:
    """Return the status of settled rows by id; with ``retry_failed``, remove failed rows from the file."""
    lines = {value["id"]: (value["status"], value.get("digest")) for value in iter_results(path)}
    known: dict[str, str] = {}
    again: set[str] = set()
    for row in rows:
        status, digest = lines.get(row.id, ("", None))
        if status == FAILED and retry_failed:
            again.add(row.id)
        elif status and digest != row.digest:
            allowed = f"{path} has a result of a different row with this id; use another directory or id"
            raise SpecError("id", row.id, allowed)
        elif status:
            known[row.id] = status
    if again:
        _forget(path, again)
    return known


def _forget(path: Path, ids: set[str]) -> None:
    """Rewrite the file without some rows; the replacement is atomic."""
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        with partial.open("wb") as file:
            file.writelines(line for line, value in _lines(path) if value["id"] not in ids)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
