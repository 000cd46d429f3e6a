"""The seam between a generation and its agent's contract.

A generation is the same list of steps for every agent repository. What a step does to the agent, which containers it
sees, which commands it is given and what their results mean, is its *side*: one object per attempt at a generation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hyperruntime.loop.evaluation.evaluator import Results
from hyperruntime.loop.workbench.container import Place


class AgentSide(Protocol):
    """What a generation asks of its agent's contract.

    Attributes:
        agent: the place that the meta agent works in.
        trial: the place that the kept state is looked at in.
    """

    agent: Place
    trial: Place

    @property
    def results(self) -> Results:
        """Per domain and split, what was evaluated so far."""
        ...

    def meta_agent_args(self) -> list[str]:
        """Return the argv of the meta agent."""
        ...

    def bring_in(self, commit: str) -> None:
        """Fill the trial's directories with a state, before its container is looked at."""
        ...

    def check_load(self) -> None:
        """Import what the agent must still have.

        Raises:
            GenerationFailedError: something cannot be imported, or that takes too long.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def evaluate(self) -> bool:
        """Evaluate the state on every domain; return whether it was stopped after the first stage.

        Raises:
            GenerationFailedError: an evaluation took too long, or could not run at all.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def evaluate_split(self, split: str) -> None:
        """Evaluate the state in full on one split of each domain, which all have it.

        Raises:
            GenerationFailedError: an evaluation took too long, or could not run at all.
            ContainerLostError: the container ended meanwhile.
        """
        ...

    def write_results(self, folder: Path) -> None:
        """Write what the evaluation gave to the generation's directory.

        Raises:
            StorageError: it cannot be written.
        """
        ...
