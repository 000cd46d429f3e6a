"""The options of a run, validated on construction."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import attrs

from hyperruntime.errors import ArchiveError, SpecError, unknown_name
from hyperruntime.gateway.config.source import absolute_source
from hyperruntime.loop.run_files.contract import KINDS, detect_contract
from hyperruntime.loop.run_files.layout import INITIAL
from hyperruntime.loop.run_files.parent_rules import SELECTIONS, GenId
from hyperruntime.spec import LIMITS_MODES, NETWORKS, Limits, LimitsMode, Network, as_gpus, check_seconds
from hyperruntime.units import GIB, MIB

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SEED_BITS = 32
ALL_SAMPLES = -1
DEFAULT_DISK_BYTES = 10 * GIB
BASELINES = ("no_selfimprove", "no_archive", "dgm", "dgm_custom", "dgm+no_selfimprove", "dgm_custom+no_selfimprove")
OPTIMIZE_OPTIONS = ("only_agent", "both_agent_ensemble", "only_ensemble")
VALID_PARENT_RULES = ("strict", "hyperagents")


def _names(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - a caller may pass anything
    return (value,) if isinstance(value, str) else tuple(value)


def _counts(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _count(least: int, allowed: str) -> Any:  # noqa: ANN401 - an attrs validator
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(attribute.name, value, allowed)

    return check


def _one_of(allowed: Sequence[str]) -> Any:  # noqa: ANN401 - an attrs validator
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            raise SpecError(attribute.name, value, unknown_name(attribute.name, str(value), allowed))

    return check


def _amount(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise SpecError(attribute.name, value, "a number above zero")


_OPTIONAL_COUNT = attrs.validators.optional(_count(1, "a count, 1 or more"))
_OPTIONAL_AMOUNT = attrs.validators.optional(_amount)


def _seconds(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_seconds(attribute.name, value)


@attrs.frozen(kw_only=True)
class GenerateOptions:
    """The options of one run of the generate loop.

    Attributes:
        domains: names of the domains, ``NAME`` or ``NAME:ARGUMENT``, in order of evaluation; the first one names the
            default agent.
        agent: path of a git repository, or name of a shipped template; None: the agent that the first domain names.
        contract: kind of the agent repository, one of ``KINDS``; None: detect it.
        max_generation: number of the last generation; 0 evaluates only the initial agent.
        run_id: the run directory is ``generate_<run_id>``; None: the current UTC time with microseconds.
        output_dir_parent: directory in which run directories are made.
        seed: seed of the run's random choices; None: draw a seed and store it with the run. The same seed gives the
            same lineage with ``parallel=1``; otherwise the choice of a parent depends on which generations have
            finished.
        parallel: number of generations that run at once.
        parent_selection: rule for choosing parents, one of ``SELECTIONS``.
        executor: entry point of ``hyperruntime.executors`` that runs generations.
        eval_samples: number of tasks per split, one number for each domain, ``-1`` for all; None: all tasks.
        eval_workers: number of tasks of a split that run at once, for domains with ``parallel_tasks`` and for the
            harness of an agent repository.
        eval_test: whether generations are also evaluated on the split ``test``; it never decides about parents.
        skip_staged_eval: whether to skip the cheap first stage of evaluation.
        edit_select_parent: whether the agents' own program, which may evolve, chooses parents, in a container.
        valid_parent: ``strict``: a generation with a score may always be a parent; ``hyperagents``: an evaluated
            generation may be a parent until the meta agent of a child fails.
        meta_patch_files: diffs from agents of other runs, applied to the first generation.
        reset_task_agent: whether these diffs leave ``task_agent.py`` unchanged.
        reset_meta_agent: whether these diffs leave ``meta_agent.py`` unchanged.
        copy_root_dir: directory to take the initial agent from, instead of the agent's own.
        run_baseline: one of ``BASELINES``, or None.
        optimize_option: what evolves: ``only_agent``, ``only_ensemble``, or ``both_agent_ensemble``.
        agent_archive_path: a finished run whose ensemble evolves.
        model: name of the model for the agents; None: the agents choose.
        gateway: the gateway's configuration file (TOML), ``replay:FILE``, ``record:FILE``, or None.
        image: image reference or recipe; None: the image that the domains or the agent name.
        network: network mode of the containers.
        limits: limits of each container; the defaults of a spec, but 10 GiB of disk.
        limits_mode: as in a spec.
        gpus: GPUs of each container, as in a spec; used only if a domain needs GPUs.
        timeout_meta_s: time limit of the meta agent, in seconds.
        timeout_eval_s: time limit of the evaluation of one split, in seconds.
        timeout_report_s: time limit of the report on one split, in seconds.
        timeout_ensemble_s: time limit of the ensemble on one split, in seconds.
        timeout_select_s: time limit of the agents' own parent selection, in seconds.
        timeout_check_s: time limit of the load check, in seconds.
        budget_requests: maximum number of model requests of the run; None means no limit, here and below.
        budget_tokens: maximum number of tokens of the run, requests and answers together.
        budget_money: maximum cost of the run, at the prices in the gateway's configuration.
        budget_generation_requests: maximum number of model requests of one generation.
        budget_generation_tokens: maximum number of tokens of one generation.
        budget_generation_money: maximum cost of one generation.
        max_file_bytes: a larger new or changed file is left out of a generation's diff.
    """

    domains: tuple[str, ...] = attrs.field(converter=_names)
    agent: str | None = attrs.field(default=None, converter=attrs.converters.optional(str))
    contract: str | None = attrs.field(default=None, validator=attrs.validators.optional(_one_of(KINDS)))
    max_generation: int = attrs.field(default=10, validator=_count(0, "a count of generations, 0 or more"))
    run_id: str | None = None
    output_dir_parent: str = attrs.field(default="outputs", converter=str)
    seed: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_count(0, "an integer, 0 or more"))
    )
    parallel: int = attrs.field(default=1, validator=_count(1, "a count of generations at once, 1 or more"))
    parent_selection: str = "score_child_prop"
    executor: str = "local"
    eval_samples: tuple[int, ...] | None = attrs.field(default=None, converter=_counts)
    eval_workers: int = attrs.field(default=10, validator=_count(1, "a count of tasks at once, 1 or more"))
    eval_test: bool = False
    skip_staged_eval: bool = False
    edit_select_parent: bool = False
    valid_parent: str = attrs.field(default="strict", validator=_one_of(VALID_PARENT_RULES))
    meta_patch_files: tuple[str, ...] = attrs.field(default=(), converter=_names)
    reset_task_agent: bool = False
    reset_meta_agent: bool = False
    copy_root_dir: str | None = attrs.field(default=None, converter=attrs.converters.optional(str))
    run_baseline: str | None = attrs.field(default=None, validator=attrs.validators.optional(_one_of(BASELINES)))
    optimize_option: str = attrs.field(default="only_agent", validator=_one_of(OPTIMIZE_OPTIONS))
    agent_archive_path: str | None = attrs.field(default=None, converter=attrs.converters.optional(str))
    model: str | None = None
    gateway: str | None = attrs.field(default=None, converter=attrs.converters.optional(str))
    image: str | None = None
    network: Network = "none"
    limits: Limits = attrs.field(factory=lambda: Limits(disk_bytes=DEFAULT_DISK_BYTES))
    limits_mode: LimitsMode = "enforce"
    gpus: str | tuple[str, ...] | None = attrs.field(default="auto:1", converter=as_gpus)
    timeout_meta_s: float = attrs.field(default=21600.0, validator=_seconds)
    timeout_eval_s: float = attrs.field(default=18000.0, validator=_seconds)
    timeout_report_s: float = attrs.field(default=10800.0, validator=_seconds)
    timeout_ensemble_s: float = attrs.field(default=10800.0, validator=_seconds)
    timeout_select_s: float = attrs.field(default=3600.0, validator=_seconds)
    timeout_check_s: float = attrs.field(default=300.0, validator=_seconds)
    budget_requests: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    budget_tokens: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    budget_money: float | None = attrs.field(default=None, validator=_OPTIONAL_AMOUNT)
    budget_generation_requests: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    budget_generation_tokens: int | None = attrs.field(default=None, validator=_OPTIONAL_COUNT)
    budget_generation_money: float | None = attrs.field(default=None, validator=_OPTIONAL_AMOUNT)
    max_file_bytes: int = attrs.field(default=5 * MIB, validator=_count(1, "a positive number of bytes"))

    def __attrs_post_init__(self) -> None:
        """Check the fields that have no validator, and combinations of fields."""
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise SpecError("domains", self.domains, "at least one name, no duplicates")
        if self.parent_selection not in SELECTIONS:
            allowed = unknown_name("selection", self.parent_selection, SELECTIONS)
            raise SpecError("parent_selection", self.parent_selection, allowed)
        if self.network not in get_args(Network):
            raise SpecError("network", self.network, f"one of {', '.join(NETWORKS)}")
        if self.limits_mode not in LIMITS_MODES:
            raise SpecError("limits_mode", self.limits_mode, f"one of {', '.join(LIMITS_MODES)}")
        if self.run_id is not None and not _RUN_ID.fullmatch(self.run_id):
            raise SpecError(
                "run_id", self.run_id, "at most 100 letters, digits, '.', '_' and '-', the first a letter or digit"
            )
        if not self.output_dir_parent or "\0" in self.output_dir_parent:
            raise SpecError("output_dir_parent", self.output_dir_parent, "a directory of the host")
        self._check_samples()
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Reject options that would otherwise be ignored."""
        ensembles = self.optimize_option != "only_agent"
        if self.optimize_option == "only_ensemble" and self.agent_archive_path is None:
            raise SpecError("optimize_option", self.optimize_option, "it requires --agent-archive-path, a finished run")
        if self.agent_archive_path is not None and self.optimize_option != "only_ensemble":
            raise SpecError(
                "agent_archive_path", self.agent_archive_path, "it requires --optimize-option only_ensemble"
            )
        if ensembles and self.run_baseline == "no_archive":
            raise SpecError("optimize_option", self.optimize_option, "the baseline no_archive has no ensemble")
        for name in ("reset_task_agent", "reset_meta_agent"):
            if getattr(self, name) and not self.meta_patch_files:
                raise SpecError(name, True, "it requires --meta-patch-files")

    def _check_samples(self) -> None:
        if self.eval_samples is None:
            return
        for number in self.eval_samples:
            if number < 1 and number != ALL_SAMPLES:
                raise SpecError("eval_samples", number, "a positive count of tasks, or -1 for all")
        if len(self.eval_samples) != len(self.domains):
            raise SpecError("eval_samples", self.eval_samples, f"one count for each of {len(self.domains)} domains")

    def settled(self) -> GenerateOptions:
        """Return the options with the run id, the seed, the contract and an absolute path of the gateway file set.

        The baseline ``no_archive`` sets the parent selection to ``latest``.

        Raises:
            AgentError: the agent's ``hyperrun.toml`` cannot be read.
        """
        now = datetime.now(UTC).strftime("%Y%m%d_%H%M%S_%f")
        seed = secrets.randbits(_SEED_BITS) if self.seed is None else self.seed
        return attrs.evolve(
            self,
            run_id=self.run_id or now,
            seed=seed,
            contract=self.contract or detect_contract(self.agent),
            parent_selection="latest" if self.run_baseline == "no_archive" else self.parent_selection,
            gateway=None if self.gateway is None else absolute_source(self.gateway),
        )

    @property
    def first_genid(self) -> GenId:
        """Id of the first generation: 0 if diffs may change the initial agent's answers, else ``"initial"``."""
        return 0 if self.meta_patch_files and not self.reset_task_agent else INITIAL

    def samples(self, position: int) -> int | None:
        """Return how many tasks per split the domain at this position runs; None for all."""
        if self.eval_samples is None:
            return None
        number = self.eval_samples[position]
        return None if number == ALL_SAMPLES else number


def options_to_json(options: GenerateOptions) -> dict[str, Any]:
    """Return the options as JSON values."""
    return attrs.asdict(options)


def options_from_json(value: Mapping[str, Any]) -> GenerateOptions:
    """Return stored options; unknown fields are ignored.

    Raises:
        ArchiveError: the stored options are invalid.
    """
    try:
        known = {field.name for field in attrs.fields(GenerateOptions)}
        values = {name: item for name, item in value.items() if name in known}
        return GenerateOptions(**{**values, "limits": Limits(**values.get("limits", {}))})
    except (TypeError, ValueError, AttributeError) as error:
        raise ArchiveError(f"the stored options of the run are invalid: {error}") from error
