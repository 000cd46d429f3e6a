"""Turn predictions into scores: on the host, or after a trial in a fresh container. Imports domain, setting and place.

A trial's container gets the files of the trial and nothing else: no network, no label, no other task's leavings. It is
removed before the verdict is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import attrs

from hyperruntime.domain import Domain, Score, Task, Trial, TrialResult, TriedDomain
from hyperruntime.errors import ContainerLostError, SpecError
from hyperruntime.logs import get_logger
from hyperruntime.loop.predictions import Prediction
from hyperruntime.loop.setting import Plan, Setting
from hyperruntime.loop.storage import make_directory, write_file
from hyperruntime.spec import ContainerSpec, ExecResult, Mount

log = get_logger(__name__)

TRIAL_OUTPUT_BYTES = 1024**2
_ATTEMPTS = 2
_LOST = TrialResult(exit_code=137, stdout=b"", stderr=b"")
_GIVEN = "/workspace/given"
_RUN = f'here=$(mktemp -d) && cp -R {_GIVEN}/. "$here" && cd "$here" && exec "$@"'


class Judge:
    """Asks domains for verdicts, and runs the trials that they want first."""

    def __init__(self, setting: Setting, plan: Plan, folder: Path) -> None:
        """Keep the files of trials below a directory of the host that no container writes in."""
        self._setting, self._plan, self._folder = setting, plan, folder
        self._trials = 0

    def score(self, domain: Domain, tasks: Sequence[Task], predictions: Sequence[Prediction]) -> tuple[Score, ...]:
        """Return the verdicts, in the order of the tasks.

        Raises:
            RunInterruptedError: the run is being ended.
            HyperRuntimeError: a trial's container cannot be started.
        """
        return tuple(self._score(domain, task, said) for task, said in zip(tasks, predictions, strict=True))

    def _score(self, domain: Domain, task: Task, said: Prediction) -> Score:
        if said.error is None:
            return self._verdict(domain, task, said)
        known = self._verdict(domain, task, attrs.evolve(said, value=None))  # for the facts, the label among them
        return attrs.evolve(known, value=0.0, valid=False, detail=said.error)

    def _verdict(self, domain: Domain, task: Task, said: Prediction) -> Score:
        if not isinstance(domain, TriedDomain):
            return domain.score(task, said.value)
        trial = domain.trial(task, said.value)
        if isinstance(trial, Score):
            return trial
        result = self._try(trial)
        if result is not None:
            return domain.verdict(task, said.value, result)
        known = domain.verdict(task, said.value, _LOST)  # for the facts
        return attrs.evolve(known, value=0.0, valid=False, detail="the answer took its container down")

    def _try(self, trial: Trial) -> TrialResult | None:
        """Return how a trial ended; None where its container was lost twice, which is no accident of the machine's."""
        for _ in range(_ATTEMPTS):
            try:
                result = self._run(trial)
            except ContainerLostError as error:
                if self._setting.containers.stopping:
                    raise
                log.info("container of a trial lost", generation=self._plan.genid, reason=str(error))
            else:
                return TrialResult(
                    exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr, timed_out=result.timed_out
                )
        return None

    def _run(self, trial: Trial) -> ExecResult:
        self._trials += 1
        folder = make_directory(self._folder / f"trial_{self._trials}")
        for name, content in trial.files.items():
            write_file(folder / _inside(name), content.encode() if isinstance(content, str) else content)
        options = self._setting.options
        spec = ContainerSpec(
            image=self._setting.image,
            mounts=(Mount(source=str(folder), target=_GIVEN),),
            workdir="/",
            limits=options.limits,
            limits_mode=options.limits_mode,
        )
        labels = {
            "io.hyperruntime.run": str(options.run_id),
            "io.hyperruntime.generation": str(self._plan.genid),
        }
        container = self._setting.containers.open(spec, labels)
        try:
            return container.exec(
                ["/bin/sh", "-c", _RUN, "trial", *trial.args],
                workdir="/",
                input=trial.input,
                timeout_s=trial.timeout_s,
                output_limit_bytes=TRIAL_OUTPUT_BYTES,
            )
        finally:
            self._setting.containers.close(container)


def _inside(name: str) -> PurePosixPath:
    """Return a trial's path, checked: an agent may have named it."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise SpecError("files", name, "relative paths that stay below the trial's directory")
    return path
