"""The options of a run, from the command line and from the ``[generate]`` table of a ``hyperrun.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from hyperruntime import registry
from hyperruntime.cli.command import AGENT_FILE
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.cli.params import COUNT, COUNTS, DURATION, GPUS, NAMES, SIZE
from hyperruntime.errors import AgentError, unknown_name
from hyperruntime.loop.contract import KINDS
from hyperruntime.loop.options import GenerateOptions
from hyperruntime.loop.selection import SELECTIONS
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


_OPTIONS: tuple[Decorator, ...] = (
    click.option("--domains", type=NAMES, multiple=True, help="What agents are evaluated on; repeat, or use commas."),
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
    click.option("--executor", metavar="NAME", default=_default("executor"), show_default=True,
                 help="What runs generations."),
    click.option("--eval-samples", type=COUNTS, multiple=True,
                 help="Tasks per split, one count for each domain; -1 for all, which is the default."),
    click.option("--skip-staged-eval", is_flag=True, help="Evaluate every generation in full at once."),
    click.option("--image", metavar="REF", help="A recipe's name or an image reference; default: the domain's."),
    click.option("--network", type=click.Choice(NETWORKS), default=_default("network"), show_default=True,
                 help="What agents can reach."),
    click.option("--memory", type=SIZE, help="Memory and swap of each container, such as 2g."),
    click.option("--cpus", type=float, help="Cores of each container, such as 1.5."),
    click.option("--pids", type=COUNT, default=DEFAULT_PIDS, show_default=True,
                 help="Processes in each container, or none for no limit."),
    click.option("--limits-mode", type=click.Choice(LIMITS_MODES), default=_default("limits_mode"), show_default=True,
                 help="watchdog: watch the memory where the engine cannot limit it."),
    click.option("--gpus", type=GPUS, metavar="WHICH", default=_default("gpus"), show_default=True,
                 help="Of each container, where a domain needs GPUs: all, auto:N, indices or CDI names."),
    _seconds("timeout_meta_s", "What the meta agent may take."),
    _seconds("timeout_eval_s", "What the evaluation of one split may take."),
    _seconds("timeout_check_s", "What the load check may take."),
    click.option("--max-file-bytes", type=SIZE, default=_default("max_file_bytes"),
                 show_default=format_size(_default("max_file_bytes")), help="A larger file stays out of a diff."),
)  # fmt: skip


def option_decorators(function: Any) -> Any:  # noqa: ANN401 - a decorator, as click's own
    """Add every option of a run to a command."""
    for decorator in reversed(_OPTIONS):
        function = decorator(function)
    return function


def make_options(values: Mapping[str, Any]) -> GenerateOptions:
    """Return the options that the command line's values are, with a run id and a seed.

    Raises:
        SpecError: a value is not allowed.
        WrongUsageError: no domain is named, or the executor is unknown.
    """
    given = dict(values)
    limits = Limits(memory_bytes=given.pop("memory"), cpus=given.pop("cpus"), pids=given.pop("pids"))
    domains, samples = _flat(given.pop("domains")), _flat(given.pop("eval_samples"))
    if not domains:
        raise WrongUsageError("name what to evaluate on with --domains; `hyperrun domains` lists what there is")
    known = registry.plugins(registry.EXECUTORS)
    if given["executor"] not in known:
        raise WrongUsageError(unknown_name("executor", given["executor"], known))
    return GenerateOptions(domains=domains, eval_samples=samples or None, limits=limits, **given).settled()


def generate_table(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the ``[generate]`` options of a ``hyperrun.toml`` by parameter name; domains default to ``[agent]``'s.

    Raises:
        AgentError: it is no TOML, or has an option that ``generate`` does not.
    """
    names = {opt.removeprefix("--").replace("-", "_"): param.name for param in command.params for opt in param.opts}
    table: dict[str, Any] = {}
    for key, value in _table(_read(path), "generate").items():
        name = names.get(key.replace("-", "_"))
        if name is None:
            known = (text.replace("_", "-") for text in names)
            raise AgentError(f"{path}: [generate]: {unknown_name('option', key, known)}")
        table[name] = value
    table.setdefault("domains", agent_domains(path.parent))
    return {name: _listed(name, value) for name, value in table.items()}


def agent_domains(agent: Path) -> tuple[str, ...]:
    """Return the domains that an agent repository's ``hyperrun.toml`` says it is for; none where it has none."""
    path = agent / AGENT_FILE
    names = _table(_read(path), "agent").get("domains", ()) if path.is_file() else ()
    return tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else (str(names),)


def _listed(name: str, value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Return a value as click takes an option that may be repeated: a list of what was said once."""
    return [value] if name in ("domains", "eval_samples") else value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AgentError(f"{path} cannot be read as TOML: {error}") from error


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = value.get(name, {})
    if not isinstance(table, dict):
        raise AgentError(f"{AGENT_FILE}: [{name}] must be a table")
    return table


def _flat(groups: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(item for group in groups for item in group)
