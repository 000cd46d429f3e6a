"""The options of ``hyperrun rollout run``, each with the default of the field that it sets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from hyperruntime.cli.config_file import generate_table
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import COUNT, DURATION, GPUS, MOUNT_PAIR, NAMES, SIZE
from hyperruntime.errors import SpecError
from hyperruntime.images.recipes import image_reference
from hyperruntime.rollout.agent.agent import AgentLimits
from hyperruntime.rollout.agent.toolset import DEFAULT_TOOLS
from hyperruntime.rollout.models import WIRES, ModelOptions
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.spec import DEFAULT_PIDS, NETWORKS, ContainerSpec, Limits

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

_FIELDS = attrs.fields_dict(RolloutOptions)
_NATURAL, _POSITIVE = click.IntRange(min=0), click.IntRange(min=1)
Decorator = Callable[[Any], Any]


class OptionPair(_ParamType):
    """``NAME=VALUE``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401
        """Return name and value."""
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            raise SpecError("--option", value, "NAME=VALUE")
        return name, text


class EnvText(_ParamType):
    """``NAME=VALUE``, or ``NAME``, whose value is read when a run starts and kept in no file."""

    name = "name[=value]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:  # noqa: ANN401
        """Return name and value."""
        name, equals, text = str(value).partition("=")
        if not name or (not equals and name not in os.environ):
            raise SpecError("--env", value, "NAME=VALUE, or the NAME of a variable that is set here")
        return name, text if equals else None


class JsonObject(_ParamType):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:  # noqa: ANN401
        """Return it."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SpecError("--extra", value, 'a JSON object, such as {"top_p": 0.95}')
        return found


def _use_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Let the ``[rollout]`` table of a file be the defaults of the command line."""
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = {**(ctx.default_map or {}), **generate_table(Path(value), ctx.command, "rollout")}


def _default(name: str) -> Any:  # noqa: ANN401 - of any field
    return _FIELDS[name].default


_MODEL: tuple[Decorator, ...] = (
    click.option("--model", metavar="NAME", help="The model, as its server knows it."),
    click.option("--base-url", metavar="URL", help="Its server, such as http://127.0.0.1:8000/v1."),
    click.option("--wire", type=click.Choice(WIRES), default="chat", show_default=True,
                 help="How it is asked: chat completions, or token by token (sglang, vllm, completions)."),
    click.option("--tokenizer", metavar="DIR", help="Directory of the model's tokenizer; for token by token."),
    click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's key."),
    click.option("--extra", type=JsonObject(), default="{}", help="More fields of each request, as JSON."),
    click.option("--model-timeout", type=DURATION, default="15m", show_default=True, help="What one answer may take."),
    click.option("--patience", type=DURATION, default="2m", show_default=True,
                 help="How long a request that fails is tried again."),
)  # fmt: skip
_OPTIONS: tuple[Decorator, ...] = (
    click.option("--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), is_eager=True,
                 expose_value=False, callback=_use_config,
                 help="TOML with these options in [rollout]; the command line wins."),
    click.option("--environment", metavar="NAME",
                 help="What agents are given to do: a name, module:Class or FILE.py:Class."),
    click.option("--option", "environment_options", type=OptionPair(), multiple=True,
                 help="For the environment; may be repeated."),
    *_MODEL,
    click.option("--group-size", type=_POSITIVE, default=1, show_default=True, help="Trajectories of each item."),
    click.option("--parallel", type=_POSITIVE, default=_default("parallel"), show_default=True,
                 help="Trajectories at once."),
    click.option("--items", type=NAMES, multiple=True, help="Only these items."),
    click.option("--max-items", type=_POSITIVE, help="Only so many items, from the first."),
    click.option("--attempts", type=_POSITIVE, default=_default("attempts"), show_default=True,
                 help="Of a trajectory while infrastructure fails."),
    click.option("--give-up-after", type=_POSITIVE, default=_default("give_up_after"), show_default=True,
                 help="So many failures of infrastructure in a row end the run."),
    click.option("--seed", type=_NATURAL, help="Of the sampling; drawn if not given, and stored."),
    click.option("--temperature", type=click.FloatRange(min=0), default=_default("temperature"), show_default=True,
                 help="Of the sampling."),
    click.option("--max-tokens", type=_POSITIVE, default=_default("max_tokens"), show_default=True,
                 help="Of one turn."),
    click.option("--max-turns", type=_POSITIVE, default=AgentLimits().turns, show_default=True,
                 help="Of one conversation."),
    click.option("--token-limit", type=_POSITIVE, help="What an agent may emit in all; default: no limit."),
    click.option("--context", type=_POSITIVE, help="Tokens that the model was served with; default: it is not known."),
    click.option("--time-limit", type=DURATION, help="What one conversation may take; default: no limit."),
    click.option("--tools", type=NAMES, multiple=True, help="Tools of the slot; default: bash and those for files."),
    click.option("--agent", metavar="NAME", help="Another agent than ours: module:function, or FILE.py:function."),
    click.option("--require-tokens", is_flag=True, help="A turn without token ids and logprobs is a failure."),
    click.option("--image", metavar="REF", default="base", show_default=True,
                 help="A recipe's name or a reference, where the environment names no other."),
    click.option("--network", type=click.Choice(NETWORKS), default="none", show_default=True,
                 help="What agents can reach."),
    click.option("--env", type=EnvText(), multiple=True,
                 help="Variable of the containers; NAME alone hands on ours, and keeps it in no file."),
    click.option("--mount", type=MOUNT_PAIR, multiple=True, help="Path of this machine to show them; may be repeated."),
    click.option("--gpus", type=GPUS, metavar="WHICH", help="all, auto:N, indices or CDI names."),
    click.option("--memory", type=SIZE, help="Of each container, such as 2g."),
    click.option("--cpus", type=float, help="Cores of each container, such as 1.5."),
    click.option("--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True, help="Processes in each container."),
    click.option("--slots-per-container", type=_POSITIVE, help="Default: what the environment says, else 1."),
    click.option("--min-containers", type=_NATURAL, default=0, show_default=True, help="Kept ready."),
    click.option("--max-containers", type=_POSITIVE, help="At once; default: what --parallel needs."),
    click.option("--timeout-setup", type=DURATION, default="30m", show_default=True, help="What a set-up may take."),
    click.option("--timeout-verify", type=DURATION, default="1h", show_default=True,
                 help="What a verification may take."),
    click.option("--run-id", metavar="TEXT", help="The run is in rollout_<run-id>; default: the time."),
    click.option("--output-dir-parent", metavar="DIR", default="./outputs", show_default=True, help="Where runs are."),
    click.option("--output-dir", metavar="DIR", help="The run's directory itself."),
    click.option("--resume-from", metavar="RUN_DIR", help="Go on with this run; only the pool, --parallel, the model's "
                 "server and how often to try may change."),
    click.option("--retry-failed", is_flag=True, help="With --resume-from: try again what infrastructure failed."),
)  # fmt: skip


def option_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add every option of a run to a command."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


def model_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add the options that name a model to a command."""
    for decorator in reversed(_MODEL):
        function = decorator(function)
    return function


def make_model(values: Mapping[str, Any]) -> ModelOptions:
    """Return the model that the command line names.

    Raises:
        WrongUsageError: it names none.
        SpecError: a value is not allowed.
    """
    for name in ("model", "base_url"):
        if not values.get(name):
            raise WrongUsageError(
                f"say which model to ask with --model NAME and --base-url URL; --{name.replace('_', '-')} is missing"
            )
    return ModelOptions(
        name=values["model"],
        base_url=values["base_url"],
        wire=values["wire"],
        tokenizer=values["tokenizer"],
        key_env=values["key_env"],
        timeout_s=values["model_timeout"],
        patience_s=values["patience"],
        extra=values["extra"],
    )


def make_options(values: Mapping[str, Any]) -> RolloutOptions:
    """Return the options that the command line's values are.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no environment or no model is named.
    """
    if not values["environment"]:
        raise WrongUsageError("say what agents are given to do with --environment NAME; docs/rollouts.md lists them")
    named = ("environment", "group_size", "parallel", "attempts", "give_up_after", "max_items", "seed", "temperature")
    more = ("max_tokens", "agent", "require_tokens", "retry_failed")
    tools = tuple(name for names in values["tools"] for name in names)
    return RolloutOptions(
        **{name: values[name] for name in (*named, *more)},
        tools=tools or DEFAULT_TOOLS,
        environment_options=dict(values["environment_options"]),
        model=make_model(values),
        items=tuple(name for names in values["items"] for name in names),
        limits=AgentLimits(
            turns=values["max_turns"],
            tokens=values["token_limit"],
            context_tokens=values["context"],
            time_s=values["time_limit"],
        ),
        container=_container(values),
        env_names=tuple(name for name, text in values["env"] if text is None),
        pool=PoolOptions(
            **{name: values[name] for name in ("slots_per_container", "min_containers", "max_containers")}
        ),
        setup_s=values["timeout_setup"],
        verify_s=values["timeout_verify"],
    )


def _container(values: Mapping[str, Any]) -> ContainerSpec:
    return ContainerSpec(
        image=image_reference(values["image"]),
        mounts=values["mount"],
        env={name: text for name, text in values["env"] if text is not None},
        network=values["network"],
        gpus=values["gpus"],
        limits=Limits(memory_bytes=values["memory"], cpus=values["cpus"], pids=values["pids"]),
    )
