"""A batch: each row of prompts is worked on once, in a slot of its own, and nothing is scored.

``results.jsonl`` is the truth: one line for each row that is settled, appended when it is. A batch that was killed at
any instant goes on with the rows that have no line, so none is lost and none is settled twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError, SpecError
from hyperruntime.logs import get_logger
from hyperruntime.loop.lock import RunLock
from hyperruntime.loop.storage import json_line, make_directory, write_atomic
from hyperruntime.rollout.prompts import Row
from hyperruntime.rollout.rundir import Journal

log = get_logger(__name__)

RESULTS = "results.jsonl"
DONE, FAILED = "done", "failed"
_ERROR_CHARACTERS = 2000

Attend = Callable[[Row], Awaitable[Mapping[str, Any]]]
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


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of settled rows by id; a torn one is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            log.warning("torn line skipped", file=str(path), line=number)
            continue
        if isinstance(value, dict) and isinstance(value.get("id"), str) and value.get("status") in (DONE, FAILED):
            found[value["id"]] = value
    return found


async def run_batch(
    rows: Sequence[Row],
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
        StorageError: a result cannot be written; what is settled stays settled.
    """
    started = time.monotonic()
    make_directory(output)
    with RunLock(output) as lock:
        _cancel_when_lost(lock)
        path = output / RESULTS
        known = _settled(rows, path, retry_failed=options.retry_failed)
        todo = [row for row in rows if row.id not in known]
        new: dict[str, str] = {}
        journal = Journal(path)

        async def settle(row: Row) -> None:
            line = await _line(row, attend, options.attempts)
            await asyncio.shield(journal.add(json_line(line)))
            new[row.id] = line["status"]
            on_settled(line)

        try:
            await _each(todo, settle, options.parallel)
        finally:
            await journal.close()
    states = [*new.values(), *(line["status"] for line in known.values())]
    return BatchSummary(
        rows=len(rows),
        done=states.count(DONE),
        failed=states.count(FAILED),
        skipped=len(known),
        duration_s=time.monotonic() - started,
    )


def _cancel_when_lost(lock: RunLock) -> None:
    """End the batch when another process takes its directory over."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()

    def cancel() -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    lock.on_lost(cancel)


async def _each(rows: Sequence[Row], settle: Callable[[Row], Awaitable[None]], parallel: int) -> None:
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


async def _line(row: Row, attend: Attend, attempts: int) -> dict[str, Any]:
    """Return what is written of a row, worked on until it is done or was begun often enough."""
    facts: dict[str, Any] = {"id": row.id, "row": dict(row.data), "digest": row.digest, "started_at": time.time()}
    for attempt in itertools.count(1):
        facts["attempts"] = attempt
        try:
            line = {**facts, "status": DONE, "error": None, **await attend(row)}
            json_line(line)  # what cannot be written is this row's failure, not the batch's
            return line
        except Exception as error:  # noqa: BLE001 - one row's failure is no other's, whoever's code it came from
            log.warning("row failed", row=row.id, attempt=attempt, kind=type(error).__name__, error=str(error)[:300])
            if attempt >= attempts or not isinstance(error, HyperRuntimeError) or isinstance(error, SpecError):
                said = {"kind": type(error).__name__, "message": str(error)[:_ERROR_CHARACTERS]}
                return {**facts, "status": FAILED, "error": said}
    raise AssertionError  # a count has no end


def _settled(rows: Iterable[Row], path: Path, *, retry_failed: bool) -> dict[str, dict[str, Any]]:
    """Return the lines that stay, by id, of rows that are asked for; failed ones go first if they are to be retried."""
    lines = read_results(path)
    again = {row.id for row in rows if retry_failed and lines.get(row.id, {}).get("status") == FAILED}
    if again:
        kept = [line for name, line in lines.items() if name not in again]
        write_atomic(path, b"".join(json_line(line) for line in kept))
    known = {row.id: lines[row.id] for row in rows if row.id in lines and row.id not in again}
    for row in rows:
        if row.id in known and known[row.id].get("digest") != row.digest:
            allowed = f"the id of the row that {path} has a result of, which differs; use another directory or id"
            raise SpecError("id", row.id, allowed)
    return known
