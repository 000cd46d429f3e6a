"""A shell inside a container that is attached to this process, as drivers give it."""

from __future__ import annotations

from typing import Protocol


class AttachedShell(Protocol):
    """A live ``/bin/sh`` inside a container, attached by pipes; :class:`subprocess.Popen` as drivers start it.

    ``input``, ``output`` and ``errors`` are descriptors; closing ``input`` ends the shell.
    """

    @property
    def input(self) -> int:
        """Descriptor that feeds the shell."""
        ...

    @property
    def output(self) -> int:
        """Descriptor of what the shell prints."""
        ...

    @property
    def errors(self) -> int:
        """Descriptor of what the engine says."""
        ...

    def close_input(self) -> None:
        """Let the shell read end-of-file; may be called again."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Return the attached process's exit code, or None while it runs."""
        ...

    def close(self) -> None:
        """End the attached process if it still runs."""
        ...

    def close_output(self) -> None:
        """Close the output descriptors, once nobody reads them."""
        ...
