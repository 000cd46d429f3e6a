"""The errors that end a generation early; only the loop uses them."""

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
    """Return untrusted text as one line that is safe to show on a terminal, at most 600 characters and " ..."."""
    words = "".join(char if char.isprintable() else " " for char in text).split()
    line = " ".join(words)
    return line if len(line) <= _MAX_SENTENCE_CHARS else line[:_MAX_SENTENCE_CHARS] + " ..."


def last_line(output: bytes, otherwise: str) -> str:
    """Return the last line of a command's output, or ``otherwise`` if there is no output."""
    lines = output.decode(errors="replace").strip().splitlines()
    return one_line(lines[-1]) if lines else otherwise


class GenerationFailedError(HyperRuntimeError):
    """The generation failed; the failure is recorded and the run continues.

    Attributes:
        failure: class of the failure.
        again: whether the infrastructure may be at fault, so that another attempt may help.
    """

    def __init__(self, failure: FailureClass, detail: str, *, again: bool = False) -> None:
        """Store the class and one sentence about the failure."""
        self.failure, self.again = failure, again
        super().__init__(detail)


class RunInterruptedError(HyperRuntimeError):
    """The run is being interrupted; the generation is not recorded, and a resumed run continues it."""


def translate_failure(error: Exception, step: str) -> GenerationFailedError:
    """Translate an error in a step into the failure of the generation.

    If a container exceeded a limit, the generation failed. If a container was lost for another reason, the machine may
    be at fault, so the generation is retried. After the last attempt the generation is blamed, unless hyperruntime
    ended the container, for example because the host had no space left.

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
        post_mortem = error.post_mortem
        if not isinstance(post_mortem, PostMortem):
            return GenerationFailedError(blame, str(error), again=True)
        if post_mortem.limit:
            why = f"the container exceeded a limit: {post_mortem.ended_by}"
            return GenerationFailedError("timeout" if post_mortem.limit == "wall_s" else blame, why)
        if post_mortem.oom_killed:
            return GenerationFailedError(blame, str(error))
        return GenerationFailedError("infrastructure" if post_mortem.ended_by else blame, str(error), again=True)
    if isinstance(error, ExecStartError):
        return GenerationFailedError(blame, str(error))
    if isinstance(error, RepositoryError) and step == "diff":
        return GenerationFailedError(blame, str(error), again=True)
    if isinstance(error, HyperRuntimeError):
        return GenerationFailedError("infrastructure", str(error), again=True)
    return GenerationFailedError(blame, f"{type(error).__name__}: {error}", again=True)
