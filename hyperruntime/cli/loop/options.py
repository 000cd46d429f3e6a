"""The options of ``hyperrun generate``, each with the default of the field that it sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.config_file import use_config, use_limits
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import COUNT, COUNTS, DURATION, GPUS, LIMITS, NAMES, RUN_DIRECTORY, SIZE
from hyperruntime.errors import unknown_name
from hyperruntime.loop.run_files.contract import KINDS
from hyperruntime.loop.run_files.options import (
    BASELINES,
    DEFAULT_DISK_BYTES,
    OPTIMIZE_OPTIONS,
    VALID_PARENT_RULES,
    GenerateOptions,
)
from hyperruntime.loop.run_files.parent_rules import SELECTIONS
from hyperruntime.spec import DEFAULT_PIDS, LIMITS_MODES, NETWORKS, Limits
from hyperruntime.units import format_duration, format_size

_FIELDS = attrs.fields_dict(GenerateOptions)
_NATURAL, _POSITIVE = click.IntRange(min=0), click.IntRange(min=1)
Decorator = Callable[[Any], Any]


def _default(name: str) -> Any:  # noqa: ANN401 - of any field
    return _FIELDS[name].default


def _seconds(name: str, text: str) -> Decorator:
    value = _default(name)
    option = f"--{name.removesuffix('_s').replace('_', '-')}"
    return click.option(option, name, type=DURATION, default=value, show_default=format_duration(value), help=text)


def _budget(name: str, who: str) -> Decorator:
    kind: Any = click.FloatRange(min=0, min_open=True) if name.endswith("money") else _POSITIVE
    what = {"requests": "requests to models", "tokens": "tokens", "money": "money, by the gateway's prices"}
    text = f"{what[name.rpartition('_')[2]].capitalize()} that {who} may use; default: no limit."
    return click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)


_BUDGETS = (("", "the run"), ("generation_", "one generation"))
_MODEL_OPTIONS: tuple[Decorator, ...] = (
    click.option("--gateway", metavar="FILE", help="Models: TOML with [gateway], or replay:FILE, or record:FILE."),
    *(_budget(f"budget_{who}{what}", text) for who, text in _BUDGETS for what in ("requests", "tokens", "money")),
)
_OPTIONS: tuple[Decorator, ...] = (
    click.option("--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), is_eager=True,
                 expose_value=False, callback=use_config,
                 help="TOML with these options in [generate], and the gateway's in [gateway]; the command line wins."),
    click.option("--runtime", metavar="NAME", help="Container engine, as `hyperrun --runtime NAME` says it."),
    click.option("--domains", type=NAMES, multiple=True,
                 help="What agents are evaluated on; several after one another, or with commas."),
    click.option("--agent", metavar="PATH|NAME", help="A git repository or a shipped template; default: the domain's."),
    click.option("--contract", type=click.Choice(KINDS), help="What kind of repository it is; default: what it says."),
    click.option("--max-generation", type=_NATURAL, default=_default("max_generation"), show_default=True,
                 help="Number of the last generation."),
    click.option("--run-id", metavar="TEXT", help="The run is in generate_<run-id>; default: the time."),
    click.option("--output-dir-parent", metavar="DIR", default=_default("output_dir_parent"), show_default=True,
                 help="Where runs are."),
    click.option("--seed", type=_NATURAL,
                 help="Of every choice; drawn if not given, and stored. It fixes the lineage with --parallel 1."),
    click.option("--parallel", type=_POSITIVE, default=_default("parallel"), show_default=True,
                 help="How many generations run at once."),
    click.option("--parent-selection", metavar="RULE", default=_default("parent_selection"), show_default=True,
                 help=f"One of {', '.join(SELECTIONS)}."),
    click.option("--valid-parent", type=click.Choice(VALID_PARENT_RULES), default=_default("valid_parent"),
                 show_default=True, help="strict: who has a score may be a parent; hyperagents: until a child fails."),
    click.option("--edit-select-parent", is_flag=True, help="The agents' own program chooses parents, and evolves."),
    click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
                 help="Go on with this run instead; only its length, --parallel, --gateway and budgets may change."),
    click.option("--executor", metavar="NAME", default=_default("executor"), show_default=True,
                 help="What runs generations."),
    click.option("--eval-samples", type=COUNTS, multiple=True,
                 help="Tasks per split, one count for each domain; -1 for all, which is the default."),
    click.option("--eval-workers", type=_POSITIVE, default=_default("eval_workers"), show_default=True,
                 help="Tasks at once, where the repository has a harness of its own."),
    click.option("--eval-test", is_flag=True, help="Evaluate on the split test too; no choice depends on it."),
    click.option("--skip-staged-eval", is_flag=True, help="Evaluate every generation in full at once."),
    click.option("--meta-patch-files", type=click.Path(), metavar="FILE", multiple=True,
                 help="Diffs that the first generation starts with, in this order; several after one another."),
    click.option("--reset-task-agent", is_flag=True, help="These diffs leave task_agent.py alone."),
    click.option("--reset-meta-agent", is_flag=True, help="These diffs leave meta_agent.py alone."),
    click.option("--copy-root-dir", metavar="DIR", help="The initial agent is what is in this directory."),
    click.option("--run-baseline", type=click.Choice(BASELINES), help="Leave a part of the method out, to compare."),
    click.option("--optimize-option", type=click.Choice(OPTIMIZE_OPTIONS), default=_default("optimize_option"),
                 show_default=True, help="What is evolved."),
    click.option("--agent-archive-path", metavar="RUN_DIR", help="With only_ensemble: the run whose agents it joins."),
    click.option("--model", metavar="NAME", help="The model that agents ask for."),
    *_MODEL_OPTIONS,
    click.option("--image", metavar="REF", help="A recipe's name or an image reference; default: the domain's."),
    click.option("--network", type=click.Choice(NETWORKS), default=_default("network"), show_default=True,
                 help="What agents can reach."),
    click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
                 metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE", help="Several of the next four at once."),
    click.option("--memory", type=SIZE, help="Memory and swap of each container, such as 2g."),
    click.option("--cpus", type=float, help="Cores of each container, such as 1.5."),
    click.option("--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True,
                 help="Processes in each container, or none for no limit."),
    click.option("--disk", type=SIZE, default=DEFAULT_DISK_BYTES, show_default=format_size(DEFAULT_DISK_BYTES),
                 help="What each container's files may take; one that takes more is ended."),
    click.option("--limits-mode", type=click.Choice(LIMITS_MODES), default=_default("limits_mode"), show_default=True,
                 help="watchdog: watch the memory where the engine cannot limit it."),
    click.option("--gpus", type=GPUS, metavar="WHICH", default=_default("gpus"), show_default=True,
                 help="Of each container, where a domain needs GPUs: all, auto:N, indices or CDI names."),
    _seconds("timeout_meta_s", "What the meta agent may take."),
    _seconds("timeout_eval_s", "What the evaluation of one split may take."),
    _seconds("timeout_report_s", "What the report on one split may take."),
    _seconds("timeout_ensemble_s", "What the ensemble may take for one split."),
    _seconds("timeout_select_s", "What the agents' own choice of a parent may take."),
    _seconds("timeout_check_s", "What the load check may take."),
    click.option("--max-file-bytes", type=SIZE, default=_default("max_file_bytes"),
                 show_default=format_size(_default("max_file_bytes")), help="A larger file stays out of a diff."),
)  # fmt: skip


def option_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add every option of a run to a command."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


def model_options(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add the options of a run that say what agents may use of models to a command."""
    for decorator in reversed(_MODEL_OPTIONS):
        function = decorator(function)
    return function


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the options that the command line's values are, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is named, or the executor is unknown.
    """
    given = dict(values)
    given["meta_patch_files"] = tuple(given["meta_patch_files"])
    fields = {"memory_bytes": "memory", "cpus": "cpus", "pids": "pids", "disk_bytes": "disk"}
    limits = Limits(**{field: given.pop(name) for field, name in fields.items()})
    domains, samples = _flat(given.pop("domains")), _flat(given.pop("eval_samples"))
    if not domains:
        raise WrongUsageError("name what to evaluate on with --domains; `hyperrun domains` lists what there is")
    known = registry.plugins(registry.EXECUTORS)
    if given["executor"] not in known:
        raise WrongUsageError(unknown_name("executor", given["executor"], known))
    return GenerateOptions(domains=domains, eval_samples=samples or None, limits=limits, **given).settled()


def _flat(groups: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(item for group in groups for item in group)
