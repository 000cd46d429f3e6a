"""``hyperrun rollout``: the table of its commands, which are imported only when called."""

from __future__ import annotations

import click

from hyperruntime.cli.command import LazyGroup, example

# name: (module below hyperruntime.cli, attribute of the module, short help in
# `hyperrun rollout --help`)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("rollout.run", "run", "Run agents on items, score them, and write trajectories."),
    "preflight": (
        "rollout.models",
        "preflight",
        "Check that a model server returns what rollouts record.",
    ),
    "environments": (
        "rollout.environments",
        "environments",
        "List the installed environments and their options.",
    ),
    "batch": ("rollout.batch", "batch", "Run an agent on every prompt of a file, without scoring."),
    "export": (
        "rollout.export",
        "export",
        "Write the scored trajectories of a run as training data.",
    ),
    "submit": ("rollout.export", "submit", "Send the groups of a run to a trainer."),
    "train": ("rollout.train", "train", "Train a policy on rollouts in slots."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=example(
        "hyperrun rollout run --environment swe --option items=items.jsonl --model qwen "
        "--base-url http://gpu:8000/v1",
        "hyperrun rollout preflight --model qwen --base-url http://gpu:8000/v1",
    ),
)
def rollout() -> None:
    """Run agents in leased slots, score their trajectories, and export them as training data."""
