"""``hyperrun rollout train``: a policy learns from rollouts in slots."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click
from click.core import ParameterSource

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.rollout.options import OptionPair
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.images.recipes import image_reference
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.environment_lookup import load_environment
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions, new_run_id
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import make_directory, write_atomic
from hyperruntime.trainers.loading import load_policy_trainer
from hyperruntime.trainers.on_policy import TrainOptions, Update
from hyperruntime.trainers.on_policy import train as run_training

SETTINGS, TRAINER = "train.json", "grpo"
_CHANGEABLE = ("updates", "parallel")
_POSITIVE, _NATURAL = click.IntRange(min=1), click.IntRange(min=0)
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)
_GRPO = ("policy", "learning_rate", "clip", "kl_weight", "epochs", "save_every", "threads")


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout train",
        "hyperrun rollout train --environment terminal --option tasks=builtin --policy mine.py:Policy --updates 200",
        "hyperrun rollout train --resume-from outputs/train_1 --updates 60",
    ),
)
@click.option("--environment", default="toy", show_default=True, help="What is learned: a name, or module:Class.")
@click.option("--option", "options", type=OptionPair(), multiple=True, help="For the environment; may be repeated.")
@click.option("--policy", help="What learns: module:Class or FILE.py:Class; default: a tiny one for the toy task.")
@click.option("--updates", type=_POSITIVE, default=30, show_default=True, help="Of the policy, in all.")
@click.option("--group-size", type=click.IntRange(min=2), default=6, show_default=True, help="Trajectories of an item.")
@click.option("--items-per-update", type=_POSITIVE, help="Items of one update; default: all.")
@click.option("--parallel", type=_POSITIVE, default=8, show_default=True, help="Trajectories at once.")
@click.option("--max-turns", type=_POSITIVE, default=2, show_default=True, help="Of one conversation.")
@click.option("--max-tokens", type=_POSITIVE, default=16, show_default=True, help="Of one turn.")
@click.option("--tools", default="bash", show_default=True, help="Of the slot, with commas between.")
@click.option("--temperature", type=_ABOVE_ZERO, default=1.0, show_default=True, help="Of the sampling.")
@click.option("--learning-rate", type=_ABOVE_ZERO, default=1e-3, show_default=True, help="Of Adam.")
@click.option("--clip", type=_ABOVE_ZERO, default=0.2, show_default=True, help="How far from 1 a ratio counts.")
@click.option("--kl-weight", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Of the distance "
              "from the policy at the beginning.")  # fmt: skip
@click.option("--epochs", type=_POSITIVE, default=2, show_default=True, help="Passes over the groups of an update.")
@click.option("--save-every", type=_POSITIVE, default=1, show_default=True, help="Updates between checkpoints.")
@click.option("--threads", type=_POSITIVE, default=1, show_default=True, help="Of torch.")
@click.option("--seed", type=_NATURAL, default=0, show_default=True, help="Of the sampling.")
@click.option("--image", default="base", show_default=True, help="A recipe's name or a reference.")
@click.option("--slots-per-container", type=_POSITIVE, help="Default: what the environment says.")
@click.option("--max-containers", type=_POSITIVE, help="At once; default: what --parallel needs.")
@click.option("--output-dir", metavar="DIR", help="Default: ./outputs/train_<time>.")
@click.option("--resume-from", metavar="DIR", help="Go on with this one; only --updates and --parallel may change.")
@json_option
@click.pass_context
def train(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Let a policy learn from what its trajectories in slots are worth.

    Each update runs --group-size trajectories of each item with the policy as it is, and changes it by GRPO (extra
    `train`: torch). With no options: a tiny policy learns to write a word into a file, on a processor.

    Rollouts, checkpoints and figures are kept in the directory that is printed. A policy of your own is a class; see
    docs/training.md.
    """
    load_policy_trainer(TRAINER, {"directory": ""}).check()  # before a directory is made
    directory, settings = _place(ctx, values)
    environment = load_environment(settings["environment"], dict(settings["options"]))
    options = _options(settings)
    grpo = {name: settings[name] for name in _GRPO if settings[name] is not None}
    trainer = load_policy_trainer(TRAINER, {"directory": str(directory / "checkpoints"), **grpo})
    state = ctx.ensure_object(State)
    with state.open_runtime(run_id=directory.name) as runtime:
        note(f"training in {directory}, seed {settings['seed']}, {runtime.name} {runtime.info.version}")
        try:
            made = run_until_signal(
                run_training(runtime, trainer, environment, options, directory, on_update=_say), state
            )
        except KeyboardInterrupt:
            note(f"interrupted; go on with: hyperrun rollout train --resume-from {shlex.quote(str(directory))}")
            raise
    if as_json:
        print_json([attrs.asdict(update) for update in made])
    else:
        click.echo(str(directory))
    return 0


def _place(ctx: click.Context, values: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the directory and the settings, those of an earlier start if it goes on.

    Raises:
        WrongUsageError: there is something else, or an option changed that may not.
    """
    settings = {name: value for name, value in values.items() if name not in ("output_dir", "resume_from")}
    if values["resume_from"]:
        directory = Path(values["resume_from"]).absolute()
        said = {name for name in settings if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        for name in sorted(said - set(_CHANGEABLE)):
            raise WrongUsageError(f"--{name.replace('_', '-')} cannot change when a training goes on; leave it out")
        return directory, _stored(directory) | {name: settings[name] for name in said}
    directory = Path(values["output_dir"] or f"outputs/train_{new_run_id()}").absolute()
    if (directory / SETTINGS).exists():
        raise WrongUsageError(
            f"there is a training in {directory}; go on with it by --resume-from, or give another --output-dir"
        )
    make_directory(directory)
    write_atomic(directory / SETTINGS, json.dumps(settings, indent=1).encode())
    return directory, settings


def _stored(directory: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((directory / SETTINGS).read_bytes())
    except (OSError, ValueError) as error:
        raise WrongUsageError(f"{directory} holds no training: {error}; name a directory that was printed") from error
    return stored


def _options(settings: Mapping[str, Any]) -> TrainOptions:
    rollouts = RolloutOptions(
        environment=settings["environment"],
        environment_options=dict(settings["options"]),
        group_size=settings["group_size"],
        parallel=settings["parallel"],
        seed=settings["seed"],
        temperature=settings["temperature"],
        max_tokens=settings["max_tokens"],
        limits=AgentLimits(turns=settings["max_turns"]),
        tools=tuple(name.strip() for name in settings["tools"].split(",")),
        require_tokens=True,
        container=ContainerSpec(image=image_reference(settings["image"])),
        pool=PoolOptions(
            slots_per_container=settings["slots_per_container"], max_containers=settings["max_containers"]
        ),
    )
    return TrainOptions(rollouts=rollouts, updates=settings["updates"], items_per_update=settings["items_per_update"])


def _say(update: Update) -> None:
    """Print an update's figures."""
    metrics = update.metrics
    lost = f", {update.not_scored} not scored" if update.not_scored else ""
    note(
        f"update {update.step}: reward {metrics['reward']:.3f} of {update.groups} groups{lost},"
        f" ratio error {metrics['ratio_error']:.1e}, gradient {metrics['grad_norm']:.2f}"
    )
