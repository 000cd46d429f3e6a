"""``hyperrun rollout``: the table of its commands, none of which is imported here."""

from __future__ import annotations

import click

from hyperruntime.cli.command import LazyGroup, example

# name: (module below hyperruntime.cli, name in it, what `hyperrun rollout --help` says)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("rollout.run", "run", "Let agents attempt items, score them, and write training data."),
    "preflight": ("rollout.preflight", "preflight", "Check that a model's server gives what rollouts record."),
    "environments": ("rollout.environments", "environments", "List the installed environments and their options."),
    "batch": ("rollout.batch", "batch", "Let an agent work on every prompt of a file, with no scoring."),
    "export": ("rollout.export", "export", "Write what a run scored as training data."),
    "submit": ("rollout.submit", "submit", "Hand a run's groups to a trainer."),
    "train": ("rollout.train", "train", "Let a policy learn from rollouts in slots."),
}


class RolloutGroup(LazyGroup):
    """What is done with rollouts."""

    table = COMMANDS


@click.group(
    cls=RolloutGroup,
    epilog=example(
        "hyperrun rollout run --environment swe --option items=items.jsonl --model qwen --base-url http://gpu:8000/v1",
        "hyperrun rollout preflight --model qwen --base-url http://gpu:8000/v1",
    ),
)
def rollout() -> None:
    """Agent trajectories in leased slots: run them, score them, keep and export them as training data."""
