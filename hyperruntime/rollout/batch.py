"""A batch: an agent works on each row of prompts in its own slot; nothing is scored.

A batch is a rollout run of an environment without a reward, with files of its own:
``results.jsonl`` has one line for each settled (done or failed) row. A batch can be killed at any
time: it resumes with the rows that have no line, so no row is lost or settled twice.

Rows are read from a file of JSON lines; each may name an image and a working directory.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.datasets.json_lines import json_lines as read_objects
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import SpecError
from hyperruntime.rollout.environment import Item, UnscoredEnvironmentBase
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, check_model, complete_parts, run_rollouts
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.rollout.run_files.run_dir import RESULTS
from hyperruntime.runs.journal import json_lines, rewrite_lines
from hyperruntime.runs.recording import Journal, owned
from hyperruntime.sandbox import Sandbox
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import json_line, make_directory

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.runtime import Runtime

KEYS = ("prompt", "messages", "id", "image", "docker_image", "cwd")
_ROLES = ("system", "user", "assistant", "tool")
_ID_CHARACTERS = 200
DONE = "done"
FAILED = "failed"
_COPIED = ("model", "messages", "stop_reason", "turns", "tool_calls", "tool_errors", "usage")
_TIMES = {"acquire_s": "slot_s", "model_s": "model_s", "tools_s": "tools_s", "total_s": "total_s"}


@attrs.frozen(kw_only=True)
class BatchSummary:
    """The result of a batch.

    Attributes:
        rows: number of all rows.
        done: rows completed in this call or before.
        failed: rows failed in this call or before.
        skipped: rows that were settled before this call.
        duration_s: seconds of this call.
        left_out: why lines are not among the rows, by name.
    """

    rows: int
    done: int
    failed: int
    skipped: int
    duration_s: float
    left_out: Mapping[str, str] = attrs.field(factory=dict, hash=False)


class Prompts(UnscoredEnvironmentBase):
    """The environment of a batch: each row is an item; there is no reward.

    Attributes:
        name: name of the environment.
        rows: the rows by id.
    """

    name = "batch"

    def __init__(
        self, rows: Iterable[PromptRow], system: str = "", left_out: Mapping[str, str] | None = None
    ) -> None:
        """Set the rows.

        Args:
            rows: started in this order.
            system: system message for rows that do not start with one, or "".
            left_out: why lines of the file are not among the rows, by name.
        """
        self.rows = {row.id: row for row in rows}
        self._left_out = dict(left_out or {})
        self._system = system

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why lines of the file are not among the rows, by name."""
        return self._left_out

    def items(self) -> Iterable[Item]:
        """Return an item for each row."""
        return [Item(id=row_id) for row_id in self.rows]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return the base spec with the row's image and working directory."""
        row = self.rows[item.id]
        return attrs.evolve(base, image=row.image or base.image, workdir=row.cwd or base.workdir)

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        """Prepare nothing."""
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return a row's messages, after the system message if the row has none."""
        messages = self.rows[item.id].messages
        if self._system and messages[0]["role"] != "system":
            return [{"role": "system", "content": self._system}, *messages]
        return messages


async def run_batch(
    runtime: Runtime,
    prompts: Prompts,
    options: RolloutOptions,
    output: Path,
    *,
    parts: Parts | None = None,
    on_settled: Callable[[Mapping[str, Any]], None] = lambda line: None,
) -> BatchSummary:
    """Work on every row that has no result in ``output`` yet; a row that fails does not end the
    batch.

    Args:
        runtime: where containers run.
        prompts: the rows.
        options: rollout options; with ``retry_failed``, rows that failed before this call are
            retried.
        output: directory of ``results.jsonl``; created if missing.
        parts: objects of the caller; None creates all but the environment from the options.
        on_settled: called with each new line.

    Raises:
        SpecError: an option is invalid, or a row has the id of a settled row but different content.
        ModelError: the model cannot be opened, or its server is down.
        RunLockedError: another live process owns this directory.
        LeaseLostError: another process took over the directory.
        StorageError: a result cannot be written; settled rows stay settled.
    """
    async with AsyncExitStack() as stack:
        given = attrs.evolve(parts or Parts(), environment=prompts)
        rows = prompts.rows
        path = output / RESULTS
        # validate before creating the directory
        parts = await complete_parts(stack, options, given)
        if options.retry_failed or len(_settled(rows.values(), path, retry_failed=False)) < len(
            rows
        ):
            await check_model(options, given)
        stack.enter_context(owned(make_directory(output)))
        started = time.monotonic()
        statuses = _settled(rows.values(), path, retry_failed=options.retry_failed)
        journal = Journal(path)
        stack.push_async_callback(journal.close)

        async def settle(trajectory: Trajectory) -> None:
            line, data = _recordable(rows[trajectory.item_id], trajectory)
            await journal.add(data)
            statuses[line["id"]] = line["status"]
            on_settled(line)

        if todo := [row_id for row_id in rows if row_id not in statuses]:
            chosen = attrs.evolve(
                options, items=todo, give_up_after=len(todo) * options.attempts + 1
            )
            await run_rollouts(runtime, chosen, parts=parts, keep=settle)
        counts = Counter(statuses.values())
        return BatchSummary(
            rows=len(rows),
            done=counts[DONE],
            failed=counts[FAILED],
            skipped=len(rows) - len(todo),
            duration_s=time.monotonic() - started,
            left_out=prompts.left_out,
        )


def iter_results(path: Path) -> Iterator[dict[str, Any]]:
    """Return the lines of settled rows; truncated lines are logged and skipped.

    Raises:
        StorageError: the file exists but cannot be read.
    """
    return (value for _, value in json_lines(path) if _is_result(value))


def _is_result(value: Any) -> bool:  # noqa: ANN401 - JSON
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and value.get("status") in (DONE, FAILED)
    )


def _recordable(row: PromptRow, trajectory: Trajectory) -> tuple[dict[str, Any], bytes]:
    """Return the line of a row as a value and as bytes; a result that is not JSON fails its row."""
    line: dict[str, Any] = {
        "id": row.id,
        "row": dict(row.data),
        "digest": row.digest,
        "started_at": trajectory.started_at,
        "attempts": trajectory.attempts,
    }
    if trajectory.status == INFRASTRUCTURE:
        error = trajectory.error or {}
        failed = {"kind": error.get("kind", ""), "message": error.get("message", "")}
    else:
        timing = {
            ours: trajectory.timing[name]
            for name, ours in _TIMES.items()
            if name in trajectory.timing
        }
        done = {name: getattr(trajectory, name) for name in _COPIED}
        try:
            whole = {**line, "status": DONE, "error": None, **done, "timing": timing}
            return whole, json_line(whole)
        except (ValueError, TypeError, RecursionError) as error:
            failed = {"kind": type(error).__name__, "message": str(error)}
    line |= {"status": FAILED, "error": failed}
    return line, json_line(line)


def _settled(rows: Iterable[PromptRow], path: Path, *, retry_failed: bool) -> dict[str, str]:
    """Return the status of settled rows by id; with ``retry_failed``, remove failed rows from the
    file.
    """
    lines = {value["id"]: (value["status"], value.get("digest")) for value in iter_results(path)}
    known: dict[str, str] = {}
    again: set[str] = set()
    for row in rows:
        status, digest = lines.get(row.id, ("", None))
        if status == FAILED and retry_failed:
            again.add(row.id)
        elif status and digest != row.digest:
            allowed = (
                f"{path} has a result of a different row with this id; use another directory or id"
            )
            raise SpecError("id", row.id, allowed)
        elif status:
            known[row.id] = status
    if again:
        rewrite_lines(path, lambda value: _is_result(value) and value["id"] not in again)
    return known


@attrs.frozen(kw_only=True)
class PromptRow:
    """One conversation to run.

    Attributes:
        id: the row's ``id``, or a digest of its content, which stays the same when the file grows.
        digest: digest of the row's content.
        messages: opening messages in OpenAI's form.
        image: image in which its commands run; None means the batch's image.
        cwd: working directory of its commands, an absolute path in the image; "" means the batch's
            own.
        data: the JSON object of the row, unknown keys included.
    """

    id: str
    digest: str
    messages: Sequence[Mapping[str, Any]] = attrs.field(hash=False)
    image: str | None = None
    cwd: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict, hash=False)


def read_rows(path: Path, left: LeftOut | None = None) -> tuple[PromptRow, ...]:
    """Return the rows of a JSONL file; empty lines are skipped.

    Args:
        path: the file.
        left: takes lines that are not a valid row, or repeat an id; None: they raise an error.

    Raises:
        SpecError: the file cannot be read or has no valid rows, or a line is odd, and ``left``
            takes none.
    """
    left = left or LeftOut(FAIL)
    rows: list[PromptRow] = []
    seen: dict[str, int] = {}
    twins: Counter[str] = Counter()
    try:
        for number, _, value in read_objects(path, left, finite=True):
            with left.reading(f"line {number}"):
                row = parse_row(value, f"line {number}", twins)
                if row.id in seen:
                    allowed = f"an id must be unique; line {seen[row.id]} has the same id"
                    raise SpecError(f"line {number}: id", row.id, allowed)
                seen[row.id] = number
                rows.append(row)
    except OSError as error:
        raise SpecError(
            "PROMPTS", str(path), f"a JSONL file that can be read: {error.strerror}"
        ) from error
    left.check_any(len(rows), "PROMPTS", str(path))
    if not rows:
        raise SpecError("PROMPTS", str(path), "a JSONL file with rows; this one has none")
    return tuple(rows)


def parse_row(value: Any, where: str, twins: Counter[str]) -> PromptRow:  # noqa: ANN401 - checked here
    """Return the row of a JSON value.

    Args:
        value: the JSON value of a line.
        where: name of the line in errors.
        twins: count of rows by digest, so that identical rows get different ids; updated here.

    Raises:
        SpecError: the value is not a valid row.
    """
    if not isinstance(value, dict):
        raise SpecError(where, value, "a JSON object with 'prompt' or 'messages'")
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
    twins[digest] += 1
    made = digest if twins[digest] == 1 else f"{digest}-{twins[digest]}"
    return PromptRow(
        id=_id(value.get("id"), where) or made,
        digest=digest,
        messages=_messages(value, where),
        image=_image(value, where),
        cwd=_cwd(value, where),
        data=value,
    )


def _id(value: Any, where: str) -> str:  # noqa: ANN401 - checked here
    if value is None:
        return ""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.strip() or len(text) > _ID_CHARACTERS or not text.isprintable():
        raise SpecError(
            f"{where}: id",
            value,
            f"a number or printable text of at most {_ID_CHARACTERS} characters",
        )
    return text


def _text(value: Mapping[str, Any], key: str, where: str) -> str | None:
    found = value.get(key)
    if found is not None and (not isinstance(found, str) or not found or "\0" in found):
        raise SpecError(f"{where}: {key}", found, "non-empty text without NUL")
    return found


def _cwd(value: Mapping[str, Any], where: str) -> str:
    cwd = _text(value, "cwd", where) or ""
    if cwd and not cwd.startswith("/"):
        raise SpecError(f"{where}: cwd", cwd, "an absolute path inside the image")
    return cwd


def _image(value: Mapping[str, Any], where: str) -> str | None:
    named = {
        key: text
        for key in ("image", "docker_image")
        if (text := _text(value, key, where)) is not None
    }
    if len(set(named.values())) > 1:
        raise SpecError(
            f"{where}: image",
            named["image"],
            f"the same as docker_image, {named['docker_image']!r}",
        )
    return next(iter(named.values()), None)


def _messages(value: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], ...]:
    prompt = value.get("prompt")
    messages = value.get("messages")
    if (prompt is None) == (messages is None):
        raise SpecError(where, sorted(value), "an object with one of 'prompt' and 'messages'")
    if isinstance(prompt, str) and prompt:
        return ({"role": "user", "content": prompt},)
    if prompt is not None:
        raise SpecError(f"{where}: prompt", prompt, "non-empty text")
    if not isinstance(messages, list) or not messages:
        raise SpecError(f"{where}: messages", messages, "a non-empty list of messages")
    return tuple(
        _message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages)
    )


def _message(value: Any, where: str) -> Mapping[str, Any]:  # noqa: ANN401 - checked here
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        raise SpecError(where, value, f"an object whose role is one of {', '.join(_ROLES)}")
    if not isinstance(value.get("content"), str | list) and not value.get("tool_calls"):
        raise SpecError(where, value, "a message with content")
    return value


def unknown_keys(rows: Sequence[PromptRow]) -> Iterator[str]:
    """Yield each unknown key of the rows once; the batch copies them to the results unchanged."""
    yield from dict.fromkeys(key for row in rows for key in row.data if key not in KEYS)
