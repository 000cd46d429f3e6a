"""The options of ``hyperrun rollout run``; most defaults come from the fields of ``RolloutOptions``."""

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
from hyperruntime.cli.params import COUNT, DURATION, GPUS, MOUNT_PAIR, NAMES, SIZE, option_name
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
        """Return the name and the value."""
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            raise SpecError(option_name(param), value, "NAME=VALUE")
        return name, text


class EnvText(_ParamType):
    """``NAME=VALUE``, or ``NAME``: then the value is read when a run starts, and stored in no file."""

    name = "name[=value]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:  # noqa: ANN401
        """Return the name, and the value or None."""
        name, equals, text = str(value).partition("=")
        if not name or (not equals and name not in os.environ):
            raise SpecError("--env", value, "NAME=VALUE, or the NAME of a variable that is set here")
        return name, text if equals else None


class JsonObject(_ParamType):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:  # noqa: ANN401
        """Return the object."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise SpecError("--extra", value, 'a JSON object, such as {"top_p": 0.95}')
        return found


def _use_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Make the ``[rollout]`` table of a file the defaults of the command line."""
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = {**(ctx.default_map or {}), **generate_table(Path(value), ctx.command, "rollout")}


def _default(name: str) -> Any:  # noqa: ANN401 - of any field
    return _FIELDS[name].default


_MODEL: tuple[Decorator, ...] = (
    click.option("--model", metavar="NAME", help="Name of the model on its server."),
    click.option("--base-url", metavar="URL", help="Model server, such as http://127.0.0.1:8000/v1."),
    click.option("--wire", type=click.Choice(WIRES), default="chat", show_default=True,
                 help="Protocol of the server: chat completions, or with token ids (sglang, vllm, completions)."),
    click.option("--tokenizer", metavar="DIR", help="Directory of the model's tokenizer; required unless --wire chat."),
    click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's key."),
    click.option("--extra", type=JsonObject(), default="{}", help="More fields of each request, as JSON."),
    click.option("--model-timeout", type=DURATION, default="15m", show_default=True, help="Timeout of one request."),
    click.option("--patience", type=DURATION, default="2m", show_default=True,
                 help="Retry a failed request for this time."),
)  # fmt: skip
_OPTIONS: tuple[Decorator, ...] = (
    click.option("--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), is_eager=True,
                 expose_value=False, callback=_use_config,
                 help="TOML with these options in [rollout]; the command line wins."),
    click.option("--environment", metavar="NAME",
                 help="Environment: a name, module:Class or FILE.py:Class."),
    click.option("--option", "environment_options", type=OptionPair(), multiple=True,
                 help="Option of the environment; may be repeated."),
    *_MODEL,
    click.option("--group-size", type=_POSITIVE, default=1, show_default=True, help="Trajectories per item."),
    click.option("--parallel", type=_POSITIVE, default=_default("parallel"), show_default=True,
                 help="Trajectories at once."),
    click.option("--items", type=NAMES, multiple=True, help="Use only these items."),
    click.option("--max-items", type=_POSITIVE, help="Use only the first N items."),
    click.option("--attempts", type=_POSITIVE, default=_default("attempts"), show_default=True,
                 help="Attempts of a trajectory if infrastructure fails."),
    click.option("--give-up-after", type=_POSITIVE, default=_default("give_up_after"), show_default=True,
                 help="End the run after so many infrastructure failures in a row."),
    click.option("--seed", type=_NATURAL, help="Seed of the sampling; default: a random one, stored."),
    click.option("--temperature", type=click.FloatRange(min=0), default=_default("temperature"), show_default=True,
                 help="Sampling temperature."),
    click.option("--max-tokens", type=_POSITIVE, default=_default("max_tokens"), show_default=True,
                 help="Tokens of one turn."),
    click.option("--max-turns", type=_POSITIVE, default=AgentLimits().turns, show_default=True,
                 help="Turns of one conversation."),
    click.option("--token-limit", type=_POSITIVE, help="Tokens that the model may emit in one conversation; default: "
                 "no limit."),
    click.option("--context", type=_POSITIVE, help="Context length of the served model, in tokens; default: unknown."),
    click.option("--time-limit", type=DURATION, help="Time limit of one conversation; default: no limit."),
    click.option("--tools", type=NAMES, multiple=True, help="Tools of agents; default: bash and the file tools."),
    click.option("--agent", metavar="NAME", help="Your own agent: module:function or FILE.py:function."),
    click.option("--require-tokens", is_flag=True, help="Fail if a turn has no token ids and logprobs."),
    click.option("--image", metavar="REF", default="base", show_default=True,
                 help="Recipe name or image reference, if the environment names none."),
    click.option("--network", type=click.Choice(NETWORKS), default="none", show_default=True,
                 help="Network access of agents."),
    click.option("--env", type=EnvText(), multiple=True,
                 help="Variable of the containers; NAME alone passes on ours, and its value is stored in no file."),
    click.option("--mount", type=MOUNT_PAIR, multiple=True, help="Mount a host path; may be repeated."),
    click.option("--gpus", type=GPUS, metavar="WHICH", help="GPUs: all, auto:N, indices or CDI names."),
    click.option("--memory", type=SIZE, help="Memory limit of each container, such as 2g."),
    click.option("--cpus", type=float, help="Limit of cores of each container, such as 1.5."),
    click.option("--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True,
                 help="Limit of processes and threads in each container, or none."),
    click.option("--slots-per-container", type=_POSITIVE, help="Default: the environment's choice, else 1."),
    click.option("--min-containers", type=_NATURAL, default=0, show_default=True, help="Containers kept ready."),
    click.option("--max-containers", type=_POSITIVE, help="Containers at once; default: as --parallel needs."),
    click.option("--timeout-setup", type=DURATION, default="30m", show_default=True, help="Time limit of a set-up."),
    click.option("--timeout-verify", type=DURATION, default="1h", show_default=True,
                 help="Time limit of a verification."),
    click.option("--run-id", metavar="TEXT", help="Name the run directory rollout_<run-id>; default: the time."),
    click.option("--output-dir-parent", metavar="DIR", default="./outputs", show_default=True,
                 help="Directory of the run directories."),
    click.option("--output-dir", metavar="DIR", help="The run directory itself."),
    click.option("--resume-from", metavar="RUN_DIR", help="Resume this run; only --parallel, --attempts, "
                 "--give-up-after, --retry-failed, the pool and the model's server may change."),
    click.option("--retry-failed", is_flag=True, help="With --resume-from: retry infrastructure failures."),
)  # fmt: skip


def option_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add all options of a run to a command."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


def model_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add the options of the model and its server to a command."""
    for decorator in reversed(_MODEL):
        function = decorator(function)
    return function


def make_model(values: Mapping[str, Any]) -> ModelOptions:
    """Return the model and its server, from the command line's values.

    Raises:
        WrongUsageError: ``--model`` or ``--base-url`` is missing.
        SpecError: a value is not allowed.
    """
    for name in ("model", "base_url"):
        if not values.get(name):
            raise WrongUsageError(
                f"--{name.replace('_', '-')} is missing; name the model with --model NAME and --base-url URL"
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
    """Return the run options for the command line's values.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: the environment or the model is missing.
    """
    if not values["environment"]:
        raise WrongUsageError("give --environment NAME; `hyperrun rollout environments` lists the installed ones")
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
