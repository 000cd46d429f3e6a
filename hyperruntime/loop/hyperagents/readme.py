"""The README of an evolving repository; pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from hyperruntime.loop.hyperagents.domains import OriginalDomain
from hyperruntime.loop.run_files.options import GenerateOptions

_INTRODUCTION = """\
# An agent that rewrites itself

This repository holds a task agent (`task_agent.py`), which answers tasks, and what edits the repository. Each
generation is a changed copy of the one before: it is kept together with what it scores, and later generations start
from those that did well. Everything here may be changed but `domains/`, which asks the tasks and is put back each time.

The tasks: {domains}.
"""
_ENSEMBLE = """
## The ensemble

`ensemble.py` answers a task with what all generations so far have said to it. It is scored like an agent, and may be
improved like one.
"""
_SELECTION = """
## Which generation is next

`select_next_parent.py` picks, out of all generations so far, the one that the next is made from. It may be improved
too; where it fails, an earlier version is asked.
"""


def readme(options: GenerateOptions, domains: Sequence[OriginalDomain]) -> str:
    """Return the README of a run's agent repository."""
    text = _INTRODUCTION.format(domains=", ".join(domain.name for domain in domains))
    if "ensemble" in options.optimize_option:
        text += _ENSEMBLE
    return text + (_SELECTION if options.edit_select_parent else "")
