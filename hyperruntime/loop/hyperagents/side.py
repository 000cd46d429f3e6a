"""A generation's side of a repository of the HyperAgents layout. Imports commands, evaluation and place.

The same paths and commands as in the original: the work tree at ``/hyperagents``, outputs below ``/tmp``, earlier
generations in ``/tmp/generate_<run_id>``, which is a mount that cannot be written and not a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.loop.evaluation import Results
from hyperruntime.loop.failures import GenerationFailedError, last_line
from hyperruntime.loop.hyperagents import commands
from hyperruntime.loop.hyperagents.evaluation import RepositoryEvaluator
from hyperruntime.loop.hyperagents.initial import add_labels
from hyperruntime.loop.layout import generation_name
from hyperruntime.loop.phases import Phases
from hyperruntime.loop.place import Place
from hyperruntime.loop.setting import Plan, Setting
from hyperruntime.loop.side import AgentSide
from hyperruntime.loop.steps import StepLog
from hyperruntime.loop.storage import make_directory
from hyperruntime.spec import Mount

ENV = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # litellm fetches its prices when it is imported, where it is not told
_OPEN_MODE = 0o1777


class RepositorySide:
    """How a generation talks to an agent of the hyperagents contract."""

    def __init__(
        self, setting: Setting, plan: Plan, private: Path, folder: Path, steps: StepLog, phases: Phases
    ) -> None:
        """Make the directories of both places.

        Args:
            setting: of the run. plan: of the generation. private: takes what containers write.
            folder: the generation's own. steps: takes what agents print. phases: what was done before an interrupt,
                and takes what is done now.
        """
        self._setting, self._plan, self._private, self._steps = setting, plan, private, steps
        self._baseline = frozenset((setting.options.run_baseline or "").split("+"))
        frozen = "no_selfimprove" in self._baseline and plan.parent is not None
        mounts = (self._view(), *((self._frozen(),) if frozen else ()))
        workdir = commands.FROZEN if frozen else ""
        self.agent = Place(setting, plan, private / "agent", *mounts, workdir=workdir, env=ENV)
        self.trial = open_tmp(Place(setting, plan, private / "evaluation", out=commands.TMP, env=ENV))
        self._evaluator = RepositoryEvaluator(
            setting, plan, self.trial, open_judge=self._judge, folder=folder, steps=steps, phases=phases
        )

    @property
    def results(self) -> Results:
        """Per domain and split, what was evaluated so far."""
        return self._evaluator.results

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        left = self._setting.options.max_generation - int(self._plan.genid)
        evals, base = self._setting.contract.evals, self._plan.commit
        return commands.with_python(commands.meta_agent(evals_folder=evals, base_commit=base, iterations_left=left))

    def bring_in(self, commit: str) -> None:
        """Fill the trial's directories with a state."""
        self._setting.store.export(commit, self.trial.repo)

    def check_load(self) -> None:
        """Import what the agent must still have."""
        options = self._setting.options
        dgm = bool(self._baseline & {"dgm", "dgm_custom"})
        for args in commands.load_checks(dgm=dgm, select_parent=options.edit_select_parent):
            result = self.trial.exec(
                commands.with_python(args),
                timeout_s=options.timeout_check_s,
                on_output=lambda _, chunk: self._steps.write(chunk),
            )
            if result.timed_out:
                detail = f"`{args[-1]}` took more than {options.timeout_check_s:g} s"
                raise GenerationFailedError("does-not-load", detail)
            if result.exit_code != 0:
                raise GenerationFailedError("does-not-load", last_line(result.stderr, f"`{args[-1]}` failed"))

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether it was stopped after the first stage."""
        return self._evaluator.evaluate()

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain."""
        self._evaluator.evaluate_split(split)

    def write_results(self, folder: Path) -> None:
        """Do nothing: each split's results were written when it was done."""

    @contextmanager
    def _judge(self) -> Iterator[Place]:
        """Open a place with the run's first state, its labels, and no agent's code."""
        with judging_place(self._setting, self._plan, self._private / "report") as place:
            yield place

    def _view(self) -> Mount:
        """Return the earlier generations that the meta agent sees."""
        view, evals = self._setting.layout.view, self._setting.contract.evals
        if "no_archive" in self._baseline and self._plan.parent is not None:
            name = generation_name(self._plan.parent)
            return Mount(source=str(view / name), target=f"{evals}/{name}")
        return Mount(source=str(view), target=evals)

    def _frozen(self) -> Mount:
        """Return the first state, whose meta agent is run on every generation."""
        folder = make_directory(self._private / "frozen")
        self._setting.store.export(self._setting.root, folder)
        return Mount(source=str(folder), target=commands.FROZEN)


@contextmanager
def judging_place(setting: Setting, plan: Plan, folder: Path) -> Iterator[Place]:
    """Open a place with the run's first state, its labels, and no agent's code.

    Raises:
        RunInterruptedError: the run is being ended.
        HyperRuntimeError: it cannot be started.
    """
    place = open_tmp(Place(setting, plan, folder, out=commands.TMP, env=ENV, models=False))
    setting.store.export(setting.root, place.repo)
    add_labels(setting.layout, place.repo)
    place.start_early()
    try:
        yield place
    finally:
        place.end()


def open_tmp(place: Place) -> Place:
    """Return a place whose folder for outputs, which becomes ``/tmp``, is open to every user inside."""
    place.out.chmod(_OPEN_MODE)
    return place


_: type[AgentSide] = RepositorySide
