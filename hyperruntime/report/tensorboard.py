"""Write the scalars of a run as TensorBoard reads them (extra ``tensorboard``).

Source: the event files of TensorBoard 2, written by its own writer, which torch uses too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import ExtraMissingError, StorageError
from hyperruntime.storage.atomic import make_directory, storage_errors

_NESTED = {"scores": "score", "parts": "reward", "steps": "time", "usage": "usage"}
_FLAT = {"duration": "time/all", "turns": "turns", "calls": "tool calls", "attempts": "attempts"}
_EVENTS = "events.out.tfevents."


@attrs.frozen(kw_only=True)
class Scalar:
    """A number at a step.

    Attributes:
        tag: its name; TensorBoard groups names by the part before the slash.
        step: the generation's number, or the trajectory's place.
        value: the number.
        time: seconds since the epoch.
    """

    tag: str
    step: int
    value: float
    time: float


def scalars(facts: Mapping[str, Any]) -> Iterator[Scalar]:
    """Yield the numbers of a run.

    Args:
        facts: columns of the run, as its page has them.
    """
    name = "score" if facts["kind"] == "loop" else "reward"
    columns: dict[str, Sequence[float | None]] = {
        f"{name}/all": facts["score"],
        f"{name}/best so far": _best_so_far(facts["score"]),
        **{tag: facts[column] for column, tag in _FLAT.items() if column in facts},
    }
    for column, group in _NESTED.items():
        columns |= {f"{group}/{key}": values for key, values in facts.get(column, {}).items()}
    steps = _steps(facts)
    times = [time or 0.0 for time in facts["started"]]
    for tag, values in columns.items():
        for step, value, time in zip(steps, values, times, strict=True):
            if value is not None:
                yield Scalar(tag=tag, step=step, value=float(value), time=time)


def write_events(facts: Mapping[str, Any], folder: Path) -> Path:
    """Write a run below a directory of TensorBoard, in a directory of its own; return that
    directory.

    Events of an earlier export of this run are replaced.

    Args:
        facts: name and columns of the run, as its page has them.
        folder: directory for ``tensorboard --logdir``.

    Raises:
        ExtraMissingError: TensorBoard is not installed.
        StorageError: the directory cannot be written, or has other files.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ExtraMissingError("exports to TensorBoard", "tensorboard", "tensorboard") from error
    target = make_directory(folder / str(facts["name"]))
    with storage_errors(target):
        found = list(target.iterdir())
        if others := [path.name for path in found if not path.name.startswith(_EVENTS)]:
            raise StorageError(
                f"{str(target)!r} has other files, such as {others[0]!r}; give another directory"
            )
        for path in found:
            path.unlink()
        writer = EventFileWriter(str(target))
        try:
            for one in sorted(scalars(facts), key=lambda one: one.step):
                value = Summary.Value(tag=one.tag, simple_value=one.value)
                writer.add_event(
                    Event(wall_time=one.time, step=one.step, summary=Summary(value=[value]))
                )
        finally:
            writer.close()
    return target


def _best_so_far(scores: Sequence[float | None]) -> list[float | None]:
    best: float | None = None
    found = []
    for score in scores:
        if score is not None and (best is None or score > best):
            best = score
        found.append(best)
    return found


def _steps(facts: Mapping[str, Any]) -> list[int]:
    if facts["kind"] != "loop":
        return list(range(len(facts["ids"])))
    return [0 if genid == "initial" else int(genid) for genid in facts["ids"]]
