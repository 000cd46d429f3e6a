"""``hyperrun rollout train``: train a policy on rollouts in slots."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime.cli.command import Command, State, example
from hyperruntime.cli.consent import trust_option, with_consent
from hyperruntime.cli.field_options import all_options, field_values, given_changes
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.cli.signals import run_until_signal
from hyperruntime.cli.tables import json_option, print_json
from hyperruntime.errors import ArchiveError, SpecError
from hyperruntime.images.recipes import image_reference, is_on_this_machine
from hyperruntime.json_values import parse_json
from hyperruntime.option_fields import (
    ABOVE_ZERO,
    NOT_NEGATIVE,
    AtLeast,
    changed,
    from_json,
    host_requests,
    names_no_code,
    option,
    to_json,
)
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.loading import absolute_code, load_environment
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions, new_run_id
from hyperruntime.runs.own_mark import check_requests, has_own_mark, with_own_mark
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import make_directory, make_new_directory, write_atomic
from hyperruntime.storage.run_files import MOST_JSON_BYTES, read_run_file, refuse_links
from hyperruntime.trainers.loading import load_policy_trainer
from hyperruntime.trainers.on_policy import TrainOptions, Update
from hyperruntime.trainers.on_policy import train as run_training

SETTINGS = "train.json"
TRAINER = "grpo"
_GRPO = ("policy", "learning_rate", "clip", "kl_weight", "epochs", "save_every", "threads")
_ROLLOUTS = ("environment", "group_size", "parallel", "seed", "temperature", "max_tokens")
_POOL = ("slots_per_container", "max_containers")


@attrs.frozen(kw_only=True)
class TrainSettings:
    """The options of a training, as its directory stores them; the text of each is in its field."""

    environment: str = option("toy", "Environment: a name or module:Class.", harmless=names_no_code)
    options: tuple[tuple[str, str], ...] = option(
        (), "Environment option; may be repeated.", flag="--option", kind="pairs"
    )
    policy: str | None = option(
        None, "Policy: module:Class or FILE.py:Class; default: a tiny one for the toy task."
    )
    updates: int = option(
        30, "Total number of updates.", check=AtLeast(1), changes=True, harmless=True
    )
    group_size: int = option(6, "Trajectories per item.", check=AtLeast(2), harmless=True)
    items_per_update: int | None = option(
        None, "Items per update; default: all.", check=AtLeast(1), harmless=True
    )
    parallel: int = option(
        8, "Trajectories at once.", check=AtLeast(1), changes=True, harmless=True
    )
    max_turns: int = option(2, "Turns of one conversation.", check=AtLeast(1), harmless=True)
    max_tokens: int = option(16, "Tokens of one turn.", check=AtLeast(1), harmless=True)
    tools: str = option("bash", "Tools of agents, separated by commas.", harmless=True)
    temperature: float = option(1.0, "Sampling temperature.", check=ABOVE_ZERO, harmless=True)
    learning_rate: float = option(1e-3, "Learning rate of Adam.", check=ABOVE_ZERO, harmless=True)
    clip: float = option(
        0.2, "Clip ratios to 1 plus or minus this.", check=ABOVE_ZERO, harmless=True
    )
    kl_weight: float = option(
        0.0,
        "Weight of the KL divergence from the initial policy.",
        check=NOT_NEGATIVE,
        harmless=True,
    )
    epochs: int = option(2, "Passes over the groups of an update.", check=AtLeast(1), harmless=True)
    save_every: int = option(1, "Updates between checkpoints.", check=AtLeast(1), harmless=True)
    threads: int = option(1, "Threads of torch.", check=AtLeast(1), harmless=True)
    seed: int = option(0, "Seed of the sampling.", check=AtLeast(0), harmless=True)
    image: str = option("base", "Recipe name or image reference.", harmless=is_on_this_machine)
    slots_per_container: int | None = option(
        None,
        "Slots in each container; default: the environment's choice, else 1.",
        check=AtLeast(1),
        harmless=True,
    )
    max_containers: int | None = option(
        None, "Containers at once; default: as --parallel needs.", check=AtLeast(1), harmless=True
    )


@click.command(
    cls=Command,
    epilog=example(
        "hyperrun rollout train",
        "hyperrun rollout train --environment terminal --option tasks=builtin --policy "
        "mine.py:Policy --updates 200",
        "hyperrun rollout train --resume-from outputs/train_1 --updates 60",
    ),
)
@all_options(TrainSettings, {})
@click.option("--output-dir", metavar="DIR", help="New directory; default: ./outputs/train_<time>.")
@click.option(
    "--resume-from",
    metavar="DIR",
    help="Resume this training; only --updates and --parallel may change.",
)
@trust_option
@json_option
@click.pass_context
def train(ctx: click.Context, /, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - the options by name
    """Train a policy on the rewards of its trajectories in slots.

    Each update runs --group-size trajectories of each item with the current policy, then updates it
    with GRPO (extra `train`: torch). Without options, a tiny policy learns on the CPU to write a
    word to a file.

    The command prints the directory with the rollouts, checkpoints and metrics. Your own policy is
    a class; see docs/training.md.
    """
    directory, settings = with_consent(
        lambda trust: _place(ctx, values, trust=trust), trust=values.pop("trust")
    )
    environment = load_environment(settings.environment, dict(settings.options))
    options = _options(settings)
    grpo = {name: value for name, value in _values(settings, _GRPO).items() if value is not None}
    trainer = load_policy_trainer(TRAINER, {"directory": str(directory / "checkpoints"), **grpo})
    state = ctx.ensure_object(State)
    with state.open_runtime(run_id=directory.name) as runtime:
        note(
            f"training in {directory}, seed {settings.seed}, {runtime.name} {runtime.info.version}"
        )
        try:
            made = run_until_signal(
                run_training(runtime, trainer, environment, options, directory, on_update=_say),
                state,
            )
        except KeyboardInterrupt:
            note(
                "interrupted; continue with: hyperrun rollout train --resume-from "
                f"{shlex.quote(str(directory))}"
            )
            raise
    if as_json:
        print_json(made)
    else:
        click.echo(str(directory))
    return 0


def _place(
    ctx: click.Context, values: dict[str, Any], *, trust: bool
) -> tuple[Path, TrainSettings]:
    """Return the directory and the settings; when resuming, the stored settings with the given
    changes.

    Raises:
        ReceivedRunError: another user made the training, and it asks for something that was not
            accepted.
        WrongUsageError: the directory has a training already or none to resume, or an option is
            given that cannot change.
    """
    if values["resume_from"]:
        directory = Path(values["resume_from"]).absolute()
        names = values.keys() - {"output_dir", "resume_from"}
        changes = given_changes(ctx, TrainSettings, names, "a training is resumed; leave it out")
        settings = _resumed(directory, changes, trust=trust)
        _check_trainer()
        return directory, settings
    if trust:
        raise WrongUsageError("--trust requires --resume-from")
    _check_trainer()  # before a directory is made
    if values["output_dir"]:
        directory = make_directory(Path(values["output_dir"]).absolute())
    else:
        directory = make_new_directory(Path(f"outputs/train_{new_run_id()}").absolute())
    if (directory / SETTINGS).exists():
        raise WrongUsageError(
            f"{directory} has a training already; resume it with --resume-from, or give another "
            "--output-dir"
        )
    settings = _with_absolute_code(changed(TrainSettings(), field_values(TrainSettings, values)))
    _write(directory, settings)
    return directory, settings


def _check_trainer() -> None:
    """Check that what the trainer needs is installed, before something is written."""
    load_policy_trainer(TRAINER, {"directory": ""}).check()


def _with_absolute_code(settings: TrainSettings) -> TrainSettings:
    """Return settings whose files of code are named by absolute paths: a resume may have another
    working directory.
    """
    policy = None if settings.policy is None else absolute_code(settings.policy)
    return attrs.evolve(settings, environment=absolute_code(settings.environment), policy=policy)


def _write(directory: Path, settings: TrainSettings) -> None:
    """Write the settings, marked as this user's."""
    write_atomic(
        directory / SETTINGS,
        json.dumps(with_own_mark(to_json(settings), directory), indent=1).encode(),
    )


def _resumed(
    directory: Path, changes: Mapping[tuple[str, ...], Any], *, trust: bool
) -> TrainSettings:
    """Return the stored settings with changes; settings that this user accepts get its mark."""
    path = directory / SETTINGS
    refuse_links(directory)
    try:
        value = parse_json(read_run_file(path, below=directory, most_bytes=MOST_JSON_BYTES))
        if not isinstance(value, dict):
            raise ArchiveError(f"{SETTINGS} is not a JSON object")
        settings = changed(from_json(TrainSettings, value, strict=False), changes)
    except (OSError, ValueError, SpecError, ArchiveError) as error:
        raise WrongUsageError(
            f"{directory} has no training: {error}; give the directory of a training"
        ) from error
    check_requests(path, value, host_requests(settings, changes), trust=trust)
    if not has_own_mark(value, directory):
        _write(directory, settings)
    return settings


def _options(settings: TrainSettings) -> TrainOptions:
    rollouts = RolloutOptions(
        **_values(settings, _ROLLOUTS),
        environment_options=dict(settings.options),
        limits=AgentLimits(turns=settings.max_turns),
        tools=tuple(name.strip() for name in settings.tools.split(",")),
        require_tokens=True,
        container=ContainerSpec(image=image_reference(settings.image)),
        pool=PoolOptions(**_values(settings, _POOL)),
    )
    return TrainOptions(
        rollouts=rollouts, updates=settings.updates, items_per_update=settings.items_per_update
    )


def _values(settings: TrainSettings, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in names}


def _say(update: Update) -> None:
    """Print the metrics of an update."""
    metrics = update.metrics
    lost = f", {update.not_scored} not scored" if update.not_scored else ""
    note(
        f"update {update.step}: reward {metrics['reward']:.3f} of {update.groups} groups{lost},"
        f" ratio error {metrics['ratio_error']:.1e}, gradient {metrics['grad_norm']:.2f}"
    )
