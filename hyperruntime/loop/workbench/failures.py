"""How a generation ends early; used inside the loop only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hyperruntime.driver import PostMortem
from hyperruntime.errors import (
    BudgetExceededError,
    ContainerLostError,
    ExecStartError,
    HyperRuntimeError,
    RepositoryError,
)
from hyperruntime.loop.run_files.record import FailureClass

_BLAME: Mapping[str, FailureClass] = MappingProxyType(
    {
        "meta agent": "agent",
        "settle": "agent",
        "diff": "refused-patch",
        "load check": "does-not-load",
        "evaluate": "evaluation",
    }
)


_MAX_SENTENCE_CHARS = 600


def one_line(text: str) -> str:
    """Return text that an agent may have written as one line that is safe to show on a terminal."""
    words = "".join(char if char.isprintable() else " " for char in text).split()
    line = " ".join(words)
    return line if len(line) <= _MAX_SENTENCE_CHARS else line[:_MAX_SENTENCE_CHARS] + " ..."


def last_line(output: bytes, otherwise: str) -> str:
    """Return the last line of what a command printed, or something else where it printed nothing."""
    lines = output.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1]) if lines else otherwise


class GenerationFailedError(HyperRuntimeError):
    """The generation failed for a reason of its own; it is recorded and the run goes on.

    Attributes:
        failure: the class of what went wrong.
    """

    def __init__(self, failure: FailureClass, detail: str) -> None:
        """Name the class and say in one sentence what happened."""
        self.failure = failure
        super().__init__(detail)


class InfrastructureFailedError(HyperRuntimeError):
    """Something below the generation failed; it is tried again.

    Attributes:
        failure: the class it is recorded under when no attempt is left.
    """

    def __init__(self, detail: str, failure: FailureClass = "infrastructure") -> None:
        """Say in one sentence what happened."""
        self.failure = failure
        super().__init__(detail)


class RunInterruptedError(HyperRuntimeError):
    """The run is ending because it was told to; the generation leaves no trace."""


def translate_failure(error: Exception, step: str) -> GenerationFailedError | InfrastructureFailedError:
    """Return what an error means for the generation in whose ``step`` it was raised.

    A container that ran out of memory or processes, or was ended past one of its limits, did so because of what ran in
    it. Any other loss of it may be the machine's fault and is tried again; one that is lost each time is blamed on what
    ran in it, unless this library ended it for want of the machine's own space.
    """
    blame = _BLAME.get(step, "infrastructure")
    if isinstance(error, (GenerationFailedError, InfrastructureFailedError)):
        return error
    if isinstance(error, BudgetExceededError):
        return GenerationFailedError("budget", str(error))
    if isinstance(error, ContainerLostError):
        post_mortem = error.post_mortem
        if not isinstance(post_mortem, PostMortem):
            return InfrastructureFailedError(str(error), blame)
        if post_mortem.limit:
            why = f"the container went past a limit: {post_mortem.ended_by}"
            return GenerationFailedError("timeout" if post_mortem.limit == "wall_s" else blame, why)
        if post_mortem.oom_killed:
            return GenerationFailedError(blame, str(error))
        return InfrastructureFailedError(str(error), "infrastructure" if post_mortem.ended_by else blame)
    if isinstance(error, ExecStartError):
        return GenerationFailedError(blame, str(error))
    if isinstance(error, RepositoryError) and step == "diff":
        return InfrastructureFailedError(str(error), blame)
    if isinstance(error, HyperRuntimeError):
        return InfrastructureFailedError(str(error))
    return InfrastructureFailedError(f"{type(error).__name__}: {error}", blame)
