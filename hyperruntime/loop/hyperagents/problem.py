"""Write the problem statement for the coding agent of the dgm baselines.

The run's seed draws one task that the parent answered wrongly on the split ``train``. The statement
has the task's inputs, the answer and the chat history, but not the label. The coding agent itself
finds the cause. The host asks no model, so it needs no key, and writing the statement cannot fail
because of a model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hyperruntime.errors import AgentError
from hyperruntime.loop.evaluation.evaluator import HISTORY_FOLDER
from hyperruntime.loop.hyperagents.domains import TRAIN, OriginalDomain
from hyperruntime.loop.hyperagents.labels import PREDICTION, Table, parse_table
from hyperruntime.loop.hyperagents.scoring import TABLE
from hyperruntime.loop.run_files.layout import REPORT, read_json
from hyperruntime.storage.run_files import read_run_file

_MAX_FIELD_CHARS = 8_000
_MAX_HISTORY_CHARS = 12_000
_FAILED = """\
The task agent of this repository, `TaskAgent` in `task_agent.py`, answered a task of the domain {domain} wrongly.

## The task
{inputs}

## Its answer
{answer}

## How it came to it
{history}

## What is to be done
Find out what in this repository led to such an answer, and change it so that tasks of this kind, not this one alone,
are answered well.
{scope}
"""
_GENERAL = """\
The task agent of this repository, `TaskAgent` in `task_agent.py`, answers tasks of these domains: {domains}. No task
of its last evaluation is known to be answered wrongly.

## What is to be done
Find the weakest part of how it works: what it leaves out, what it takes for granted, what it does not check. Change
that so that it answers harder tasks of these kinds well.
{scope}
"""
_SCOPE = "Change the repository itself; changes to `domains/` are dropped."
_CUSTOM_SCOPE = (
    _SCOPE
    + "\nYou may change both the task agent and yourself, the coding agent (`coding_agent.py`)."
)


def problem_statement(
    parent: Path, domains: Sequence[OriginalDomain], *, seed: str, custom: bool
) -> str:
    """Return the problem statement.

    Args:
        parent: directory of the finished generation to improve.
        domains: domains of the run.
        seed: decides which failed task is drawn.
        custom: whether the coding agent may be changed too.
    """
    scope = _CUSTOM_SCOPE if custom else _SCOPE
    failed = [
        (domain, name) for domain in domains for name in _failed(parent / domain.evaluation(TRAIN))
    ]
    if not failed:
        return _GENERAL.format(domains=", ".join(domain.name for domain in domains), scope=scope)
    domain, task_id = random.Random(seed).choice(failed)  # noqa: S311 - reproducible on purpose
    folder = parent / domain.evaluation(TRAIN)
    inputs, answer = _told(domain, task_id, folder)
    history = _history(folder / HISTORY_FOLDER / f"chat_history_{task_id}.md")
    return _FAILED.format(
        domain=domain.name, inputs=inputs, answer=answer, history=history, scope=scope
    )


def _failed(folder: Path) -> list[str]:
    """Return the ids of the tasks that were answered wrongly."""
    ids = read_json(folder / REPORT, folder.parent.parent).get("question_ids_failed")
    return [str(name) for name in ids] if isinstance(ids, list) else []


def _told(domain: OriginalDomain, task_id: str, folder: Path) -> tuple[str, str]:
    """Return a task's inputs and its answer, or placeholders if they were not stored."""
    table = _table(folder / TABLE)
    column = domain.id_column
    names = table.column(column) if table is not None and column in table.columns else ()
    if table is None or task_id not in names:
        return f"{task_id} (its text was not kept)", "(not kept)"
    row = dict(zip(table.columns, table.rows[names.index(task_id)], strict=True))
    answer = row.pop(PREDICTION, "") or "(none)"
    shown = {name: text for name, text in row.items() if name not in domain.label_columns}
    return "\n".join(
        f"{name}: {_cut(text, _MAX_FIELD_CHARS)}" for name, text in shown.items()
    ), answer


def _table(path: Path) -> Table | None:
    try:
        return parse_table(read_run_file(path, below=path.parent.parent), path.name)
    except (OSError, AgentError):
        return None


def _history(path: Path) -> str:
    try:
        return _cut(
            read_run_file(path, below=path.parents[2]).decode(errors="replace"), _MAX_HISTORY_CHARS
        )
    except (OSError, ValueError):
        return "(not kept)"


def _cut(text: str, limit: int) -> str:
    """Return text without NUL bytes; of a text above the limit only the beginning and the end."""
    text = text.replace("\0", "")
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"
