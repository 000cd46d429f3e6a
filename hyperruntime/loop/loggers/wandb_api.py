"""Loggers for trackio (extra ``trackio``; local, without an account) and for wandb (extra
``wandb``), which have the same interface.

Sources: the API references of both, ``init``, ``Run.log`` and ``Run.finish``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hyperruntime.errors import ExtraMissingError
from hyperruntime.loop.loggers.logger import LoggedRun


class _Library(Protocol):
    """The part of both libraries that is used; they write to the run that was begun last."""

    def init(self, **facts: Any) -> object:  # noqa: ANN401 - of each library
        """Begin or continue a run."""
        ...

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write figures."""
        ...

    def finish(self) -> None:
        """End the run."""
        ...


class WandbApiLogger:
    """Writes the figures of a run to a library with the interface of wandb."""

    def __init__(
        self, library: _Library, project: str, more: Callable[[LoggedRun], Mapping[str, Any]]
    ) -> None:
        """Store the settings.

        Args:
            library: the module.
            project: name of the project; "": ``hyperruntime``.
            more: returns the arguments with which the library begins or continues a run.
        """
        self._library = library
        self._project = project or "hyperruntime"
        self._more = more

    def started(self, run: LoggedRun) -> None:
        """Make the run, or continue it."""
        self._library.init(
            project=self._project,
            name=run.name,
            group=run.study or None,
            config=dict(run.options),
            **self._more(run),
        )

    def archived(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a generation."""
        self._library.log(dict(figures), step=step)

    def ended(self, state: str, reason: str) -> None:
        """Write what is not written yet."""
        self._library.finish()


def trackio_logger(project: str) -> WandbApiLogger:
    """Return a logger that writes to trackio; its dashboard is ``trackio show``.

    Args:
        project: name of the project; "": ``hyperruntime``.

    Raises:
        ExtraMissingError: trackio is not installed.
    """
    try:
        import trackio
    except ModuleNotFoundError as error:
        raise ExtraMissingError("runs in trackio", "trackio", "trackio") from error

    return WandbApiLogger(
        trackio, project, lambda run: {"resume": "allow" if run.done else "never"}
    )


def wandb_logger(project: str) -> WandbApiLogger:
    """Return a logger that writes to wandb, as its own settings say: ``WANDB_MODE=offline`` needs
    no account.

    The working directory becomes ``/``: wandb would read ``wandb/settings`` in the current one,
    which may name another server. It still writes there, or to ``WANDB_DIR``.

    Args:
        project: name of the project; "": ``hyperruntime``.

    Raises:
        ExtraMissingError: wandb is not installed.
    """
    folder = os.path.abspath(os.environ.get("WANDB_DIR") or os.getcwd())
    os.chdir("/")
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise ExtraMissingError("runs in wandb", "wandb", "wandb") from error

    def more(run: LoggedRun) -> Mapping[str, Any]:
        # the same after a resume, and another for a run of the same name elsewhere
        known = f"{run.path}\0{run.options.get('seed')}".encode(errors="surrogateescape")
        return {
            "id": hashlib.sha256(known).hexdigest()[:16],
            "resume": "allow",
            "dir": folder,
            "settings": wandb.Settings(console="off", silent=True),
        }

    return WandbApiLogger(wandb, project, more)
