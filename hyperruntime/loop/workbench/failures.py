"""The errors that end a generation early; only the loop uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from hyperruntime.driver import PostMortem
from hyperruntime.errors import (
    FULL,
    BudgetExceededError,
    ContainerLostError,
    ExecStartError,
    HyperRuntimeError,
    RepositoryError,
    SpecError,
    StorageFullError,
)
from hyperruntime.git.command import GitTimeoutError
from hyperruntime.loop.run_files.record import FailureClass
from hyperruntime.units import one_line

_BLAME: Mapping[str, FailureClass] = MappingProxyType(
    {
        "meta agent": "agent",
        "settle": "agent",
        "diff": "refused-patch",
        "load check": "does-not-load",
        "evaluate": "evaluation",
    }
)
_GIT_IS_FULL = re.compile(
    r"(?:error|fatal): [^\n]*: (?:No space left on device|Disk quota exceeded)(?:$|;)", re.MULTILINE
)


def last_line(output: bytes, otherwise: str) -> str:
    """Return the last line of a command's output, or ``otherwise`` if there is no output."""
    lines = output.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1]) if lines else otherwise


class GenerationFailedError(HyperRuntimeError):
    """The generation failed; the failure is recorded and the run continues.

    Attributes:
        failure: class of the failure.
        again: whether the infrastructure may be at fault, so that another attempt may help.
        ends_run: whether the run ends if the last attempt fails too; a resume then makes the
            generation again.
    """

    def __init__(
        self, failure: FailureClass, detail: str, *, again: bool = False, ends_run: bool = False
    ) -> None:
        """Store the class and one sentence about the failure."""
        self.failure = failure
        self.again = again
        self.ends_run = ends_run
        super().__init__(detail)


class RunInterruptedError(HyperRuntimeError):
    """The run is being interrupted; the generation is not recorded, and a resumed run continues
    it.
    """


@contextmanager
def blaming_answer(task_id: str = "") -> Iterator[None]:
    """Let a SpecError of a domain fail the evaluation of this generation: the answer may cause it,
    such as by a metric that is not finite. Any other SpecError ends the run.

    Args:
        task_id: the task, for the message.
    """
    try:
        yield
    except SpecError as error:
        where = f" of task {task_id!r}" if task_id else ""
        raise GenerationFailedError(
            "evaluation", f"the answer{where} cannot be scored: {error}"
        ) from error


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one before it, says that no space is left on the host or in a
    quota.

    Of git only lines that end with the reason count: names of files, which an agent chooses, come
    before it.
    """
    while error is not None:
        if isinstance(error, StorageFullError) or (
            isinstance(error, OSError) and error.errno in FULL
        ):
            return True
        if isinstance(error, RepositoryError) and _GIT_IS_FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def translate_failure(error: Exception, step: str) -> GenerationFailedError:
    """Translate an error in a step into the failure of the generation.

    If a container exceeded a limit, the generation failed. If a container was lost for another
    reason, the machine may be at fault, so the generation is retried. After the last attempt the
    generation is blamed, unless the host's disk was full: this is never the generation's failure,
    so the run ends, and a resume makes the generation again. If git ran past its deadline, the
    agent is blamed, and there is no other attempt.

    Args:
        error: the error.
        step: the step that raised it.
    """
    blame = _BLAME.get(step, "infrastructure")
    if isinstance(error, GenerationFailedError):
        return error
    if isinstance(error, BudgetExceededError):
        return GenerationFailedError("budget", str(error))
    if isinstance(error, ContainerLostError):
        return _of_a_lost_container(error, blame)
    if is_disk_full(error):
        return GenerationFailedError("infrastructure", str(error), again=True, ends_run=True)
    if isinstance(error, ExecStartError):
        return GenerationFailedError(blame, str(error))
    if isinstance(error, RepositoryError):
        return _repository_failure(error, step)
    if isinstance(error, HyperRuntimeError):
        return GenerationFailedError("infrastructure", str(error), again=True)
    return GenerationFailedError(blame, f"{type(error).__name__}: {error}", again=True)


def _of_a_lost_container(error: ContainerLostError, blame: FailureClass) -> GenerationFailedError:
    end = error.post_mortem
    if not isinstance(end, PostMortem):
        return GenerationFailedError(blame, str(error), again=True)
    if end.limit:
        why = f"the container exceeded a limit: {end.ended_by}"
        return GenerationFailedError("timeout" if end.limit == "wall_s" else blame, why)
    if end.oom_killed:
        return GenerationFailedError(blame, str(error))
    if end.ended_by:  # without a limit: the host's disk is full
        return GenerationFailedError("infrastructure", str(error), again=True, ends_run=True)
    return GenerationFailedError(blame, str(error), again=True)


def _repository_failure(error: RepositoryError, step: str) -> GenerationFailedError:
    # the files of the agent, or of its parent, make git slow
    if isinstance(error, GitTimeoutError):
        return GenerationFailedError(_BLAME.get(step, "agent"), str(error))
    return GenerationFailedError(
        _BLAME[step] if step == "diff" else "infrastructure", str(error), again=True
    )
