"""The default contract's side: tasks are asked of a class, and answers are judged by domains.

What the agent writes while it answers is copied out as soon as a split is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock

from hyperruntime.domain import Domain, Split
from hyperruntime.loop.evaluation.evaluator import HISTORY_FOLDER, Evaluator, Results, SplitResult, write_results
from hyperruntime.loop.evaluation.scoring import Judge
from hyperruntime.loop.evaluation.stages import evaluate_domains
from hyperruntime.loop.evaluation.task_runner import Asker, install_harness
from hyperruntime.loop.generation.adapter import AgentSide
from hyperruntime.loop.generation.baselines import frozen_mount, view_mount
from hyperruntime.loop.generation.phases import Phases
from hyperruntime.loop.run_files.contract import HARNESS, meta_agent_args
from hyperruntime.loop.run_files.layout import evaluation_name
from hyperruntime.loop.workbench.container import Place
from hyperruntime.loop.workbench.context import Plan, Setting
from hyperruntime.loop.workbench.copy_out import copy_files
from hyperruntime.loop.workbench.step_log import StepLog
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory


class TaskSide:
    """How a generation talks to an agent of the default contract."""

    def __init__(
        self, setting: Setting, plan: Plan, private: Path, folder: Path, steps: StepLog, phases: Phases
    ) -> None:
        """Make the directories of both places.

        Args:
            setting: of the run. plan: of the generation. private: takes what containers write.
            folder: the generation's own. steps: takes what agents print. phases: takes what is over, and has what was.
        """
        self._setting, self._plan, self._private, self._folder = setting, plan, private, folder
        self._phases = phases
        harness = make_directory(private / "harness")
        self._harness = Mount(source=str(harness), target=HARNESS)
        frozen = frozen_mount(setting, plan, private / "frozen")
        workdir = setting.contract.frozen if frozen else ""
        self.agent = Place(setting, plan, private / "agent", view_mount(setting, plan), *frozen, workdir=workdir)
        self.trial = Place(setting, plan, private / "evaluation", self._harness)
        self._commit, self._fresh, self._copying = plan.commit, count(1), Lock()
        self._asker = Asker(
            self.trial,
            setting.contract,
            harness,
            fresh_place=self._fresh_trial,
            workers=setting.options.eval_workers,
            timeout_s=setting.options.timeout_eval_s,
            on_output=steps.write,
        )
        judge = Judge(setting, plan, private / "trials")
        self._evaluator = Evaluator(self._asker, judge, phases.results, self._keep_split)

    @property
    def results(self) -> Results:
        """Per domain and split, what was evaluated so far."""
        return self._evaluator.results

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        left = self._setting.options.max_generation - int(self._plan.genid)
        return meta_agent_args(self._setting.contract, base_commit=self._plan.commit, iterations_left=left)

    def bring_in(self, commit: str) -> None:
        """Fill the trial's directories with a state."""
        self._commit = commit
        self._setting.store.export(commit, self.trial.repo)
        install_harness(self._private / "harness")

    def check_load(self) -> None:
        """Import what the agent must still have."""
        self._asker.check_load(self._setting.options.timeout_check_s)

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether it was stopped after the first stage."""
        setting = self._setting
        return evaluate_domains(self._evaluator, setting.domains, setting.options, self._copy_histories)

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain."""
        for position, domain in enumerate(self._setting.domains):
            part = next(part for part in domain.splits if part.name == split)
            samples = self._setting.options.samples(position)
            self._evaluator.run_split(domain, part, samples=samples, staged=False)

    def write_results(self, folder: Path) -> None:
        """Write predictions and reports."""
        for domain in self._setting.domains:
            for split, result in self.results.get(domain.name, {}).items():
                write_results(folder, domain, split, result)

    def _keep_split(self, domain: Domain, split: Split, result: SplitResult) -> None:
        self._copy_histories(domain, split)
        self._phases.keep_split(domain.name, split.name, result)

    def _copy_histories(self, domain: Domain, split: Split) -> None:
        name = evaluation_name(domain.name, split.name)
        self.trial.settle()
        copy_files(self.trial.out, self._folder / name / HISTORY_FOLDER, below=name)

    @contextmanager
    def _fresh_trial(self, evaluation: str) -> Iterator[Place]:
        """Open another container with the state that was kept; the chat histories in it are kept when it is closed."""
        place = Place(self._setting, self._plan, self._private / f"evaluation_{next(self._fresh)}", self._harness)
        try:
            self._setting.store.export(self._commit, place.repo)
            place.start()
            yield place
        finally:
            place.close()
        place.settle()
        with self._copying:
            copy_files(place.out, self._folder / evaluation / HISTORY_FOLDER, below=evaluation)


_: type[AgentSide] = TaskSide
