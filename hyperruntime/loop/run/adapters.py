"""Choose the side that a contract wants: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path

from hyperruntime.loop.generation.adapter import AgentSide
from hyperruntime.loop.generation.default_adapter import TaskSide
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.hyperagents.adapter import RepositorySide
from hyperruntime.loop.workbench.context import Plan, Setting
from hyperruntime.loop.workbench.step_log import StepLog


def open_side(setting: Setting, plan: Plan, private: Path, folder: Path, steps: StepLog, phases: Phases) -> AgentSide:
    """Return how a generation talks to its agent; its directories are made.

    Args:
        setting: of the run. plan: of the generation. private: takes what containers write.
        folder: the generation's own. steps: takes what agents print. phases: what was done before an interrupt, and
            takes what is done now.

    Raises:
        StorageError: a directory cannot be made.
    """
    kind = RepositorySide if setting.contract.kind == "hyperagents" else TaskSide
    return kind(setting, plan, private, folder, steps, phases)
