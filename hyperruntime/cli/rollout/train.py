"""``hyperrun rollout train``: train a policy on rollouts in slots."""

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
@click.option("--environment", default="toy", show_default=True, help="Environment: a name or module:Class.")
@click.option("--option", "options", type=OptionPair(), multiple=True, help="Environment option; may be repeated.")
@click.option("--policy", help="Policy: module:Class or FILE.py:Class; default: a tiny one for the toy task.")
@click.option("--updates", type=_POSITIVE, default=30, show_default=True, help="Total number of updates.")
@click.option("--group-size", type=click.IntRange(min=2), default=6, show_default=True, help="Trajectories per item.")
@click.option("--items-per-update", type=_POSITIVE, help="Items per update; default: all.")
@click.option("--parallel", type=_POSITIVE, default=8, show_default=True, help="Trajectories at once.")
@click.option("--max-turns", type=_POSITIVE, default=2, show_default=True, help="Turns of one conversation.")
@click.option("--max-tokens", type=_POSITIVE, default=16, show_default=True, help="Tokens of one turn.")
@click.option("--tools", default="bash", show_default=True, help="Tools of agents, separated by commas.")
@click.option("--temperature", type=_ABOVE_ZERO, default=1.0, show_default=True, help="Sampling temperature.")
@click.option("--learning-rate", type=_ABOVE_ZERO, default=1e-3, show_default=True, help="Learning rate of Adam.")
@click.option("--clip", type=_ABOVE_ZERO, default=0.2, show_default=True, help="Clip ratios to 1 plus or minus this.")
@click.option("--kl-weight", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Weight of the KL "
              "divergence from the initial policy.")  # fmt: skip
@click.option("--epochs", type=_POSITIVE, default=2, show_default=True, help="Passes over the groups of an update.")
@click.option("--save-every", type=_POSITIVE, default=1, show_default=True, help="Updates between checkpoints.")
@click.option("--threads", type=_POSITIVE, default=1, show_default=True, help="Threads of torch.")
@click.option("--seed", type=_NATURAL, default=0, show_default=True, help="Seed of the sampling.")
@click.option("--image", default="base", show_default=True, help="Recipe name or image reference.")
@click.option("--slots-per-container", type=_POSITIVE, help="Default: the environment's choice, else 1.")
@click.option("--max-containers", type=_POSITIVE, help="Containers at once; default: as --parallel needs.")
@click.option("--output-dir", metavar="DIR", help="New directory; default: ./outputs/train_<time>.")
@click.option("--resume-from", metavar="DIR", help="Resume this training; only --updates and --parallel may change.")
@json_option
@click.pass_context
def train(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Train a policy on the rewards of its trajectories in slots.

    Each update runs --group-size trajectories of each item with the current policy, then updates it with GRPO (extra
    `train`: torch). Without options, a tiny policy learns on the CPU to write a word to a file.

    The command prints the directory with the rollouts, checkpoints and metrics. Your own policy is a class; see
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
            note(f"interrupted; continue with: hyperrun rollout train --resume-from {shlex.quote(str(directory))}")
            raise
    if as_json:
        print_json([attrs.asdict(update) for update in made])
    else:
        click.echo(str(directory))
    return 0


def _place(ctx: click.Context, values: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the directory and the settings; when resuming, the stored settings with the given changes.

    Raises:
        WrongUsageError: the directory has a training already or none to resume, or an option is given that cannot
            change.
    """
    settings = {name: value for name, value in values.items() if name not in ("output_dir", "resume_from")}
    if values["resume_from"]:
        directory = Path(values["resume_from"]).absolute()
        said = {name for name in settings if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        for name in sorted(said - set(_CHANGEABLE)):
            raise WrongUsageError(f"--{name.replace('_', '-')} cannot change when a training is resumed; leave it out")
        return directory, _stored(directory) | {name: settings[name] for name in said}
    directory = Path(values["output_dir"] or f"outputs/train_{new_run_id()}").absolute()
    if (directory / SETTINGS).exists():
        raise WrongUsageError(
            f"{directory} has a training already; resume it with --resume-from, or give another --output-dir"
        )
    make_directory(directory)
    write_atomic(directory / SETTINGS, json.dumps(settings, indent=1).encode())
    return directory, settings


def _stored(directory: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((directory / SETTINGS).read_bytes())
    except (OSError, ValueError) as error:
        raise WrongUsageError(f"{directory} has no training: {error}; give the directory of a training") from error
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
    """Print the metrics of an update."""
    metrics = update.metrics
    lost = f", {update.not_scored} not scored" if update.not_scored else ""
    note(
        f"update {update.step}: reward {metrics['reward']:.3f} of {update.groups} groups{lost},"
        f" ratio error {metrics['ratio_error']:.1e}, gradient {metrics['grad_norm']:.2f}"
    )
