"""The options of ``hyperrun generate``; defaults come from the fields of ``GenerateOptions``."""

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
    what = {"requests": "model requests", "tokens": "tokens", "money": "money, at the gateway's prices,"}
    text = f"{what[name.rpartition('_')[2]].capitalize()} that {who} may use; default: no limit."
    return click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)


_BUDGETS = (("", "the run"), ("generation_", "one generation"))
_MODEL_OPTIONS: tuple[Decorator, ...] = (
    click.option("--gateway", metavar="FILE", help="Models: TOML with [gateway], or replay:FILE or record:FILE."),
    *(_budget(f"budget_{who}{what}", text) for who, text in _BUDGETS for what in ("requests", "tokens", "money")),
)
_OPTIONS: tuple[Decorator, ...] = (
    click.option("--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), is_eager=True,
                 expose_value=False, callback=use_config,
                 help="TOML with these options in [generate] and the gateway's in [gateway]; the command line wins."),
    click.option("--runtime", metavar="NAME", help="Container runtime, as in `hyperrun --runtime NAME`."),
    click.option("--domains", type=NAMES, multiple=True,
                 help="Domains to evaluate on, separated by spaces or commas."),
    click.option("--agent", metavar="PATH|NAME", help="Git repository or shipped template; default: the domain's."),
    click.option("--contract", type=click.Choice(KINDS), help="Kind of the agent repository; default: detect it."),
    click.option("--max-generation", type=_NATURAL, default=_default("max_generation"), show_default=True,
                 help="Number of the last generation."),
    click.option("--run-id", metavar="TEXT", help="Name the run directory generate_<run-id>; default: the time."),
    click.option("--output-dir-parent", metavar="DIR", default=_default("output_dir_parent"), show_default=True,
                 help="Directory of the run directories."),
    click.option("--seed", type=_NATURAL,
                 help="Seed of random choices; default: a random one, stored. Fixes the lineage with --parallel 1."),
    click.option("--parallel", type=_POSITIVE, default=_default("parallel"), show_default=True,
                 help="Generations at once."),
    click.option("--parent-selection", metavar="RULE", default=_default("parent_selection"), show_default=True,
                 help=f"Rule for choosing parents: {', '.join(SELECTIONS)}."),
    click.option("--valid-parent", type=click.Choice(VALID_PARENT_RULES), default=_default("valid_parent"),
                 show_default=True, help="Possible parents. strict: generations with a score; hyperagents: evaluated "
                 "generations until the meta agent of a child fails."),
    click.option("--edit-select-parent", is_flag=True,
                 help="Let the agents' own program choose parents; it evolves too."),
    click.option("--resume-from", type=RUN_DIRECTORY, metavar="RUN_DIR",
                 help="Resume this run; only its length, --parallel, --image, --gateway and budgets may change."),
    click.option("--executor", metavar="NAME", default=_default("executor"), show_default=True,
                 help="Executor that runs generations."),
    click.option("--eval-samples", type=COUNTS, multiple=True,
                 help="Tasks per split, one number for each domain; -1 means all. Default: all."),
    click.option("--eval-workers", type=_POSITIVE, default=_default("eval_workers"), show_default=True,
                 help="Tasks at once, where the domain or the agent's own harness allows it."),
    click.option("--eval-test", is_flag=True, help="Also evaluate on the test split; no choice depends on it."),
    click.option("--skip-staged-eval", is_flag=True, help="Skip the cheap first stage of evaluation."),
    click.option("--meta-patch-files", type=click.Path(), metavar="FILE", multiple=True,
                 help="Diffs to apply to the first generation, in this order, separated by spaces."),
    click.option("--reset-task-agent", is_flag=True, help="With --meta-patch-files: keep task_agent.py unchanged."),
    click.option("--reset-meta-agent", is_flag=True, help="With --meta-patch-files: keep meta_agent.py unchanged."),
    click.option("--copy-root-dir", metavar="DIR", help="Take the initial agent from this directory."),
    click.option("--run-baseline", type=click.Choice(BASELINES), help="Disable a part of the method, for comparison."),
    click.option("--optimize-option", type=click.Choice(OPTIMIZE_OPTIONS), default=_default("optimize_option"),
                 show_default=True, help="What evolves."),
    click.option("--agent-archive-path", metavar="RUN_DIR",
                 help="With only_ensemble: the run whose agents the ensemble uses."),
    click.option("--model", metavar="NAME", help="Model for the agents; default: the agents choose."),
    *_MODEL_OPTIONS,
    click.option("--image", metavar="REF", help="Recipe name or image reference; default: the domain's image."),
    click.option("--network", type=click.Choice(NETWORKS), default=_default("network"), show_default=True,
                 help="Network access of the containers."),
    click.option("--limits", type=LIMITS, is_eager=True, expose_value=False, callback=use_limits,
                 metavar="memory=SIZE,cpus=N,pids=N,disk=SIZE", help="Set several of the next four options."),
    click.option("--memory", type=SIZE, help="Limit of memory and swap of each container, such as 2g."),
    click.option("--cpus", type=float, help="Limit of cores of each container, such as 1.5."),
    click.option("--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True,
                 help="Limit of processes and threads in each container, or none."),
    click.option("--disk", type=SIZE, default=DEFAULT_DISK_BYTES, show_default=format_size(DEFAULT_DISK_BYTES),
                 help="Limit of disk space of each container; a container that uses more is ended."),
    click.option("--limits-mode", type=click.Choice(LIMITS_MODES), default=_default("limits_mode"), show_default=True,
                 help="watchdog: hyperrun watches the memory where the engine cannot limit it."),
    click.option("--gpus", type=GPUS, metavar="WHICH", default=_default("gpus"), show_default=True,
                 help="GPUs of each container if a domain needs GPUs: all, auto:N, indices or CDI names."),
    _seconds("timeout_meta_s", "Time limit of the meta agent."),
    _seconds("timeout_eval_s", "Time limit of the evaluation of one split."),
    _seconds("timeout_report_s", "Time limit of the report on one split."),
    _seconds("timeout_ensemble_s", "Time limit of the ensemble on one split."),
    _seconds("timeout_select_s", "Time limit of the agents' own parent selection."),
    _seconds("timeout_check_s", "Time limit of the load check."),
    click.option("--max-file-bytes", type=SIZE, default=_default("max_file_bytes"),
                 show_default=format_size(_default("max_file_bytes")), help="Leave larger files out of a diff."),
)  # fmt: skip


def option_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add all options of a run to a command."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


def model_options(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add the options for the gateway and the budgets to a command."""
    for decorator in reversed(_MODEL_OPTIONS):
        function = decorator(function)
    return function


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the run options for the command line's values, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is given, or the executor is unknown.
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
