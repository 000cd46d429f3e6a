"""The interface of a shell in a container that a driver attaches to this process."""

from __future__ import annotations

from typing import Protocol


class AttachedShell(Protocol):
    """A live ``/bin/sh`` in a container, attached by pipes.

    ``input``, ``output`` and ``errors`` are file descriptors. Closing ``input`` ends the shell.
    """

    @property
    def input(self) -> int:
        """Descriptor to which the shell's input is written."""
        ...

    @property
    def output(self) -> int:
        """Descriptor from which the shell's output is read."""
        ...

    @property
    def errors(self) -> int:
        """Descriptor from which the engine's messages are read."""
        ...

    def close_input(self) -> None:
        """Let the shell read end-of-file; may be called again."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """Return the attached process's exit code, or None if it still runs after ``timeout_s``."""
        ...

    def close(self) -> None:
        """Kill the attached process if it still runs."""
        ...

    def close_output(self) -> None:
        """Close the output descriptors; called when no thread reads them."""
        ...
