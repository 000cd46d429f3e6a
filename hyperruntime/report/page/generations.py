"""Content of the page about a run of the loop: a column for each fact of all generations, and the
details of single ones.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hyperruntime.domain import DomainBase, Task
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run.plan import domains_to_show
from hyperruntime.loop.run_files.archive import RunView
from hyperruntime.loop.run_files.layout import (
    AGENT_OUTPUT,
    CHAT_HISTORY,
    LOG,
    PATCH,
    Layout,
    evaluation_name,
)
from hyperruntime.loop.run_files.parent_rules import GenId, number_of
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.report.page.model_use import LoggedModelUse, number, time_of
from hyperruntime.report.pictures import read_predictions, read_task_facts
from hyperruntime.secrets.known import Secrets
from hyperruntime.storage.run_files import UnsafeFileError, list_run_directory, read_run_file
from hyperruntime.units import format_size

_MOST_TEXT = 256 * 1024  # characters of one text: a diff, a transcript
_MOST_PICTURE = 96 * 1024
_MOST_TRANSCRIPTS = 40  # of one generation's tasks
_MOST_ANSWER = 4000
_MOST_METRICS = 30  # columns
_TRANSCRIPTS = "agent_evals"


class LoopRun:
    """A run of the loop.

    Attributes:
        notes: what could not be read.
    """

    def __init__(self, view: RunView, screen: Secrets) -> None:
        """Read nothing more than the records.

        Args:
            view: the run.
            screen: removes keys.
        """
        self._screen = screen
        self._layout = Layout(Path(view.run_dir))
        self._models = LoggedModelUse(self._layout.exchanges, screen)
        self.notes: list[str] = []
        self.show(view)
        self.notes += view.problems

    def show(self, view: RunView) -> None:
        """Show the run as ``view`` describes it."""
        self._view = view
        self.__dict__.pop("_records", None)

    @cached_property
    def _records(self) -> list[GenerationRecord]:
        return sorted(self._view.generations, key=lambda one: number_of(one.genid))

    @property
    def scores(self) -> list[float | None]:
        """The score of each generation, by number; None if it has none."""
        return [None if one.failure else one.score for one in self._records]

    def facts(self) -> dict[str, Any]:
        """Return what the page says of the whole run, and its columns, as JSON values."""
        columns = self.columns(self._records)
        places = {genid: index for index, genid in enumerate(columns["ids"])}
        parents = [-1 if genid is None else places.get(genid, -1) for genid in columns["parent"]]
        return {**self.head(), **columns, "parent": parents}

    def head(self) -> dict[str, Any]:
        """Return what the page says of the whole run."""
        view = self._view
        options = self._view.options
        try:
            models = self._models.rows()
        except OSError as error:
            models = []
            self._note(f"the log of the models' use cannot be read: {error.strerror}")
        return {
            "kind": "loop",
            "name": Path(view.run_dir).resolve().name,
            "state": view.state,
            "options": {
                **({"ended": self._screen.text(view.ended)} if view.ended else {}),
                "domains": ", ".join(options.domains), "agent": options.agent or "the domain's", "seed": view.seed,
                "parents by": options.parent_selection, "generations wanted": view.wanted,
                "at once": options.parallel,
            },
            "models": models,
        }  # fmt: skip

    def columns(self, records: Sequence[GenerationRecord]) -> dict[str, Any]:
        """Return the columns of some generations; each parent is an id, or None."""
        splits = dict.fromkeys(
            (d, s) for record in records for d, found in record.scores.items() for s in found
        )
        steps = dict.fromkeys(step for record in records for step in record.durations)
        return {
            "ids": [str(record.genid) for record in records],
            "parent": [None if record.parent is None else str(record.parent) for record in records],
            "score": [None if record.failure else number(record.score) for record in records],
            "scores": {
                f"{domain} {split}": [
                    number(record.scores.get(domain, {}).get(split)) for record in records
                ]
                for domain, split in splits
            }
            | self._metrics(records),
            "failure": [record.trouble[0] for record in records],
            "detail": [self._screen.text(record.trouble[1])[:500] for record in records],
            "started": [time_of(record.started) for record in records],
            "duration": [number(sum(record.durations.values())) for record in records],
            "steps": {
                step: [number(record.durations.get(step)) for record in records] for step in steps
            },
            "attempts": [record.attempts for record in records],
            "usage": _usage_columns(records),
        }

    def _metrics(self, records: Sequence[GenerationRecord]) -> dict[str, list[Any]]:
        """Return a column for each metric of a domain and split, at most ``_MOST_METRICS``."""
        names = dict.fromkeys(
            (domain, split, name)
            for record in records
            for domain, splits in record.metrics.items()
            for split, metrics in splits.items()
            for name in metrics
        )
        if (left := len(names) - _MOST_METRICS) > 0:
            self._note(f"{left} metrics are not shown: at most {_MOST_METRICS} have a column")
        return {
            self._screen.text(f"{domain} {split} {name}"): [
                number(record.metrics.get(domain, {}).get(split, {}).get(name))
                for record in records
            ]
            for domain, split, name in list(names)[:_MOST_METRICS]
        }

    def details_of(self, genid: GenId) -> dict[str, Any] | None:
        """Return the details of a generation by its id; None if there is no such generation."""
        return next(
            (self.details(index) for index, one in enumerate(self._records) if one.genid == genid),
            None,
        )

    def details(self, index: int) -> dict[str, Any]:
        """Return the details of a generation: its diff, logs, transcripts, answers and scores by
        task.
        """
        record = self._records[index]
        folder = self._layout.generation(record.genid)
        output = folder / AGENT_OUTPUT
        missing: Counter[str] = Counter()  # what is left out -> how often
        transcripts = [
            *self._transcript("meta agent", output / CHAT_HISTORY),
            *self._task_transcripts(folder, record, missing),
        ]
        return {
            "diff": self._read(output / PATCH),
            "transcripts": transcripts,
            "log": self._read(folder / LOG),
            "tasks": list(self._tasks(record, missing)),
            "left_out": [f"{count} {what}" for what, count in missing.items()],
            "dropped": [
                [self._screen.text(path), self._screen.text(reason)]
                for path, reason in record.dropped
            ],
            "settings": self._screen.value(record.settings),
        }

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _read(self, path: Path) -> str:
        try:
            text = read_run_file(path, below=self._layout.root).decode(errors="replace")
        except UnsafeFileError as error:
            self._note(f"{path.relative_to(self._layout.root)} is not shown: {error.strerror}")
            return ""
        except OSError:
            return ""
        return shortened(self._screen.text(text))

    def _names(self, folder: Path) -> list[str]:
        try:
            return list_run_directory(folder, below=self._layout.root)
        except OSError as error:
            self._note(
                f"{os.path.relpath(folder, self._layout.root)} is not shown: {error.strerror}"
            )
            return []

    def _transcript(self, title: str, path: Path) -> Iterator[dict[str, Any]]:
        if text := self._read(path):
            yield {"title": title, "parts": markdown_parts(text)}

    def _task_transcripts(
        self, folder: Path, record: GenerationRecord, missing: Counter[str]
    ) -> Iterator[dict[str, Any]]:
        left = _MOST_TRANSCRIPTS
        for domain, splits in record.scores.items():
            for split in splits:
                place = folder / evaluation_name(domain, split) / _TRANSCRIPTS
                paths = [place / name for name in self._names(place)]
                for path in paths[:left]:
                    yield from self._transcript(f"{domain} {split} {path.stem}", path)
                if more := len(paths[left:]):
                    missing[
                        f"transcripts of tasks are left out: only the first {_MOST_TRANSCRIPTS} "
                        "are here"
                    ] += more
                left -= len(paths[:left])

    def _tasks(self, record: GenerationRecord, missing: Counter[str]) -> Iterator[dict[str, Any]]:
        for domain, splits in record.scores.items():
            for split in splits:
                figures = read_task_facts(self._view.run_dir, record.genid, domain, split)
                answers = read_predictions(self._view.run_dir, record.genid, domain, split)
                for task_id, facts in figures.items():
                    answer = (
                        json.dumps(self._screen.value(answers[task_id]))
                        if task_id in answers
                        else ""
                    )
                    task = (
                        self._known_tasks.get((domain, split, task_id))
                        if task_id in answers
                        else None
                    )
                    yield {
                        "domain": domain,
                        "split": split,
                        "task": self._screen.text(task_id),
                        "score": number(facts.get("score")),
                        "valid": facts.get("valid"),
                        "detail": self._screen.text(str(facts.get("detail") or ""))[:500],
                        "answer": shortened(answer, _MOST_ANSWER),
                        "picture": self._picture(domain, task, answers[task_id], missing)
                        if task
                        else "",
                    }

    def _picture(self, domain: str, task: Task, answer: object, missing: Counter[str]) -> str:
        """Return an SVG picture of an answer in base64, or ""; the page shows it as an image, which
        runs no script.
        """
        try:
            svg = self._screen.text(self._domains[domain].picture(task, answer) or "")
            data = svg.encode()
        except Exception as error:  # noqa: BLE001 - of a domain, about an answer of an agent
            why = self._screen.text(f"{type(error).__name__}: {error}")[:200]
            missing[f"pictures of answers could not be drawn by domain {domain}: {why}"] += 1
            return ""
        if len(data) > _MOST_PICTURE:
            missing[
                f"pictures of answers are left out: each has more than {format_size(_MOST_PICTURE)}"
            ] += 1
            return ""
        return base64.b64encode(data).decode()

    @cached_property
    def _domains(self) -> dict[str, DomainBase]:
        try:
            return {one.name: one for one in domains_to_show(self._view)}
        except HyperRuntimeError as error:
            self._note(f"no pictures of answers: {error}")
            return {}

    @cached_property
    def _known_tasks(self) -> dict[tuple[str, str, str], Task]:
        return {
            (name, split.name, task.id): task
            for name, domain in self._domains.items()
            for split in domain.splits
            for task in domain.tasks(split.name)
        }


def _usage_columns(records: Sequence[GenerationRecord]) -> dict[str, list[Any]]:
    used = [record.usage for record in records]
    if not any(used):
        return {}
    names = ("requests", "input_tokens", "output_tokens", "money")
    return {
        name: [None if one is None else number(getattr(one, name)) for one in used]
        for name in names
    }


def shortened(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text, without its middle if it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - most} characters left out]\n{text[-half:]}"


def markdown_parts(text: str) -> list[list[str]]:
    """Return a chat history in Markdown as ``[title, text]`` pairs, cut at its headings outside of
    code blocks.
    """
    parts: list[list[str]] = [["", ""]]
    fence = ""
    lines: list[str] = []
    for line in text.split("\n"):
        mark = line[: len(line) - len(line.lstrip("`"))]
        if len(mark) >= 3 and (not fence or (len(mark) >= len(fence) and line.strip() == mark)):
            fence = "" if fence else mark
        if not fence and line.startswith(("# ", "## ")):
            parts[-1][1] = "\n".join(lines).strip("\n")
            parts.append([line.lstrip("# ").strip(), ""])
            lines = []
        else:
            lines.append(line)
    parts[-1][1] = "\n".join(lines).strip("\n")
    return [part for part in parts if part[0] or part[1]]
