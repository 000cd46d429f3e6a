"""The interface of a shell in a container that a driver attaches to this process."""

from __future__ import annotations

from typing import Protocol


class AttachedShell(Protocol):
    """A live ``/bin/sh`` in a container, attached by pipes or a socket.

    ``input`` and ``output`` are file descriptors, and may be the same one. Closing ``input`` ends
    the shell. An idle container should hold no other descriptor and no thread.
    """

    @property
    def input(self) -> int:
        """Descriptor to which the shell's input is written; may be -1 when it was closed."""
        ...

    @property
    def output(self) -> int:
        """Descriptor that is readable when :meth:`read` has something to return."""
        ...

    def read(self) -> bytes:
        """Return the next output of the shell and messages of the engine, in whole lines of their
        own; never block.

        Returns:
            The bytes; empty at the end, when the shell has ended.

        Raises:
            BlockingIOError: there is nothing to read.
        """
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
        """Close the output descriptor; called when no thread reads it."""
        ...
