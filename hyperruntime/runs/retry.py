"""What a run tries again, and how often: one rule for all items, wherever they are made.

An item is a generation or a trajectory. The rule as a table: docs/design/runs.md#retries.
"""

from __future__ import annotations

import attrs

from hyperruntime.errors import HyperRuntimeError, NodeLostError, SandboxLostError

ATTEMPTS = 3  # at an item, if the infrastructure fails
MOST_LOSSES = 10  # of an item with its nodes, before it counts as failed
MOST_FAULTS = 3  # nodes that cannot do the same work, before the run ends
ITEMS_IN_A_ROW = 3  # whose attempts all failed, before the run ends
# A short failure of the machine may end all attempts that run at that moment, and half of those
# that follow; so the limit of attempts grows with their number.
ATTEMPTS_IN_A_ROW = 20


def attempts_in_a_row(parallel: int) -> int:
    """Return how many failed attempts in a row, of all items together, end a run.

    Args:
        parallel: how many attempts run at the same time.
    """
    return max(ATTEMPTS_IN_A_ROW, 2 * parallel)


class LostTooOftenError(SandboxLostError):
    """The same work was lost on ten nodes: the work is at fault, or all nodes are."""


@attrs.define
class Losses:
    """How often one piece of work went to another node.

    Attributes:
        lost: because its node was lost, or could not do it.
        faults: because its node could not do it.
    """

    lost: int = 0
    faults: int = 0

    def count(self, error: HyperRuntimeError, *, ends_run: bool = False) -> None:
        """Count an error; return if the work may go to another node.

        Args:
            error: the loss or the fault.
            ends_run: whether it is known that no node can do the work.

        Raises:
            LostTooOftenError: it may not: the item failed.
            HyperRuntimeError: the error itself; it may not, because nodes cannot do it.
        """
        self.lost += 1
        self.faults += not isinstance(error, NodeLostError)
        if ends_run or self.faults == MOST_FAULTS:
            raise error
        if self.lost == MOST_LOSSES:
            raise LostTooOftenError(f"lost on {self.lost} nodes; the last time: {error}") from error


@attrs.define
class Streak:
    """Failures of the infrastructure since something last went well, of all items together.

    Attributes:
        allowed: how many in a row end the run.
        failures: how many there are.
    """

    allowed: int
    failures: int = 0

    def count(self, *, failed: bool) -> None:
        """Count what ended."""
        self.failures = self.failures + 1 if failed else 0

    @property
    def is_over(self) -> bool:
        """Whether the run should end."""
        return self.failures >= self.allowed
