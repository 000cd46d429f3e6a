"""A batch: each row of prompts is worked on once, in a slot of its own, and nothing is scored.

``results.jsonl`` is the truth: one line for each row that is settled, appended when it is. A batch that was killed at
any instant goes on with the rows that have no line, so none is lost and none is settled twice.
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
"""Works on a row and returns JSON values for its line; what it raises is the row's failure."""


@attrs.frozen(kw_only=True)
class BatchSummary:
    """What a batch came to.

    Attributes:
        rows: how many there are.
        done: how many were worked on to their end, in this call or before.
        failed: the same of those that could not be.
        skipped: how many were settled before this call.
        duration_s: seconds of this call.
    """

    rows: int
    done: int
    failed: int
    skipped: int
    duration_s: float


@attrs.frozen(kw_only=True)
class BatchOptions:
    """How a batch is run.

    Attributes:
        parallel: rows that are worked on at the same time.
        attempts: how often a row is begun before it counts as failed.
        retry_failed: whether rows that failed before are begun again.
    """

    parallel: int = 8
    attempts: int = 2
    retry_failed: bool = False

    def __attrs_post_init__(self) -> None:
        """Check the numbers."""
        for name in ("parallel", "attempts"):
            if getattr(self, name) < 1:
                raise SpecError(name, getattr(self, name), "a whole number, at least 1")


def iter_results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of settled rows; a torn one is none.

    Raises:
        StorageError: the file is there and cannot be read.
    """
    for _, value in _lines(path):
        yield value


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line that says what became of a row, as it is written and as a value."""
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
        rows: in the order in which they are begun.
        attend: works on one row.
        output: directory of ``results.jsonl``; made if need be.
        options: how.
        on_settled: called with each new line.

    Raises:
        SpecError: a row has the id of a settled one and another content.
        RunLockedError: another process works on this directory.
        LeaseLostError: another process took it over.
        StorageError: a result cannot be written; what is settled stays settled.
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
    """Settle all rows, so many at a time; the first that cannot be written ends the others."""
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
    """Return what is written of a row, worked on until it is done or was begun often enough."""
    facts: dict[str, Any] = {"id": row.id, "row": dict(row.data), "digest": row.digest, "started_at": time.time()}
    for attempt in itertools.count(1):
        facts["attempts"] = attempt
        try:
            line = {**facts, "status": DONE, "error": None, **await attend(row)}
            json_line(line)  # what cannot be written is this row's failure, not the batch's
            return line
        except Exception as error:  # noqa: BLE001 - one row's failure is no other's, whoever's code it came from
            check_cancelled()
            log.warning("row failed", row=row.id, attempt=attempt, kind=type(error).__name__, error=str(error)[:300])
            if attempt >= attempts or not isinstance(error, HyperRuntimeError) or isinstance(error, SpecError):
                said = {"kind": type(error).__name__, "message": str(error)[:_ERROR_CHARACTERS]}
                return {**facts, "status": FAILED, "error": said}
    raise AssertionError  # a count has no end


def _settled(rows: Iterable[PromptRow], path: Path, *, retry_failed: bool) -> dict[str, str]:
    """Return the state, by id, of asked rows that are settled; failed ones are forgotten if they are to be retried."""
    lines = {value["id"]: (value["status"], value.get("digest")) for value in iter_results(path)}
    known: dict[str, str] = {}
    again: set[str] = set()
    for row in rows:
        status, digest = lines.get(row.id, ("", None))
        if status == FAILED and retry_failed:
            again.add(row.id)
        elif status and digest != row.digest:
            allowed = f"the id of the row that {path} has a result of, which differs; use another directory or id"
            raise SpecError("id", row.id, allowed)
        elif status:
            known[row.id] = status
    if again:
        _forget(path, again)
    return known


def _forget(path: Path, ids: set[str]) -> None:
    """Write the file anew without some rows, so that a kill leaves the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        with partial.open("wb") as file:
            file.writelines(line for line, value in _lines(path) if value["id"] not in ids)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
