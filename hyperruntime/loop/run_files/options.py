"""The options of a run, validated on construction. A field is also the option on the command line
and in TOML files.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from hyperruntime.datasets.left_out import SKIP, UNSUPPORTED
from hyperruntime.errors import SpecError
from hyperruntime.gateway.config.source import absolute_source
from hyperruntime.git.change_rules import DEFAULT_MAX_CHANGE_BYTES, ChangeRules
from hyperruntime.images.recipes import is_on_this_machine
from hyperruntime.loop.run_files.contract import KINDS, detect_contract
from hyperruntime.loop.run_files.layout import INITIAL, META_PATCHES
from hyperruntime.loop.run_files.parent_rules import RULES, GenId
from hyperruntime.network.egress import NETWORKS, Egress, Network, network_of
from hyperruntime.option_fields import (
    ABOVE_ZERO,
    AtLeast,
    Check,
    OneOf,
    about,
    at_most,
    limit_options,
    names_no_code,
    option,
    option_fields,
    parts,
)
from hyperruntime.runs.options import RUN_ID, RUN_ID_FORM
from hyperruntime.spec import (
    DEFAULT_PIDS,
    LIMITS_MODES,
    Limits,
    LimitsMode,
    as_gpus,
    check_seconds,
)
from hyperruntime.units import GIB, MIB

_SEED_BITS = 32
ALL_SAMPLES = -1
DEFAULT_DISK_BYTES = 10 * GIB
BASELINES = (
    "no_selfimprove",
    "no_archive",
    "dgm",
    "dgm_custom",
    "dgm+no_selfimprove",
    "dgm_custom+no_selfimprove",
)
OPTIMIZE_OPTIONS = ("only_agent", "both_agent_ensemble", "only_ensemble")
VALID_PARENT_RULES = ("strict", "hyperagents")


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _counts(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _seconds(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_seconds(attribute.name, value)


def _timeout(default_s: float, what: str) -> Any:  # noqa: ANN401 - an attrs field
    return option(
        default_s,
        f"Time limit of {what}.",
        check=_seconds,
        changes=True,
        scores=True,
        harmless=True,
    )


def _is_harmless_rule(value: object) -> bool:
    return names_no_code(value) or str(value).partition(":")[0] in RULES


def _budget(what: str, who: str, check: Check) -> Any:  # noqa: ANN401 - an attrs field
    scores = who != "the run"
    text = f"{what} that {who} may use; default: no limit."
    return option(None, text, check=check, changes=True, scores=scores, harmless=True)


@attrs.frozen(kw_only=True)
class GenerateOptions:
    """The options of one run of the generate loop; the text of each is in its field, as ``--help``
    shows it.

    Attributes:
        domains: ``NAME`` or ``NAME:ARGUMENT``, in order of evaluation; the first one names the
            default agent.
        max_generation: 0 evaluates only the initial agent.
        run_id: None: the current UTC time with microseconds.
        seed: the same seed gives the same lineage with ``parallel=1``; otherwise the choice of a
            parent depends on which generations have finished.
        executor: entry point of ``hyperruntime.executors``.
        eval_workers: for domains with ``parallel_tasks`` and for the harness of an agent
            repository.
        edit_select_parent: the program runs in a container.
        budget_requests: None means no limit, also in the other budgets.
        budget_tokens: requests and answers together.
        limits: the defaults of a spec, but 10 GiB of disk.
    """

    # The paths of ``agent`` and ``output_dir_parent`` are not read when a run is resumed: harmless.
    domains: tuple[str, ...] = attrs.field(
        converter=_names,
        metadata=about(
            "Domains to evaluate on, separated by spaces or commas.",
            kind="names",
            harmless=names_no_code,
        ),
    )
    agent: str | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(str),
        metadata=about(
            "Git repository or shipped template; default: the domain's.",
            kind="path",
            metavar="PATH|NAME",
            harmless=True,
        ),
    )
    contract: str | None = option(
        None, "Kind of the agent repository; default: detect it.", check=OneOf(KINDS), harmless=True
    )
    max_generation: int = option(
        10,
        "Number of the last generation.",
        check=AtLeast(0),
        changes=True,
        resume_help="Change the number of the last generation.",
        harmless=True,
    )
    run_id: str | None = option(
        None,
        "Name the run directory generate_<run-id>; default: the time.",
        metavar="TEXT",
        harmless=True,
    )
    output_dir_parent: str = attrs.field(
        default="outputs",
        converter=str,
        metadata=about(
            "Directory of the run directories.", kind="path", metavar="DIR", harmless=True
        ),
    )
    seed: int | None = option(
        None,
        "Seed of random choices; default: a random one, stored. Fixes the lineage with "
        "--parallel 1.",
        check=AtLeast(0),
        harmless=True,
    )
    parallel: int = option(
        1,
        "Generations at once.",
        check=AtLeast(1),
        changes=True,
        resume_help="Generations at once.",
        harmless=True,
    )
    parent_selection: str = option(
        "score_child_prop",
        f"Rule for choosing parents: {', '.join(RULES)}, or another NAME, NAME:ARGUMENT or "
        "./FILE.py:CLASS.",
        metavar="RULE",
        changes=True,
        harmless=_is_harmless_rule,
    )
    valid_parent: str = option(
        "strict",
        "Possible parents. strict: generations with a score; hyperagents: evaluated "
        "generations until the meta agent of a child fails.",
        check=OneOf(VALID_PARENT_RULES),
        harmless=True,
    )
    edit_select_parent: bool = option(
        False, "Let the agents' own program choose parents; it evolves too.", harmless=True
    )
    executor: str = option("local", "Executor that runs generations.", metavar="NAME", changes=True)
    eval_samples: tuple[int, ...] | None = attrs.field(
        default=None,
        converter=_counts,
        metadata=about(
            "Tasks per split, one number for each domain; -1 means all. Default: all.",
            kind="counts",
            harmless=True,
        ),
    )
    unsupported: str = option(
        SKIP,
        "Odd rows of a data set. skip: leave them out, and name them; fail: refuse the data set.",
        check=UNSUPPORTED,
        changes=True,
        harmless=True,
    )
    eval_workers: int = option(
        10,
        "Tasks at once, where the domain or the agent's own harness allows it.",
        check=AtLeast(1),
        changes=True,
        scores=True,
        harmless=True,
    )
    eval_test: bool = option(
        False, "Also evaluate on the test split; no choice depends on it.", harmless=True
    )
    skip_staged_eval: bool = option(
        False, "Skip the cheap first stage of evaluation.", harmless=True
    )
    meta_patch_files: tuple[str, ...] = attrs.field(
        default=(),
        converter=_names,
        metadata=about(
            "Diffs to apply to the first generation, in this order, separated by spaces.",
            kind="files",
            metavar="FILE",
        ),
    )
    reset_task_agent: bool = option(
        False, "With --meta-patch-files: keep task_agent.py unchanged.", harmless=True
    )
    reset_meta_agent: bool = option(
        False, "With --meta-patch-files: keep meta_agent.py unchanged.", harmless=True
    )
    copy_root_dir: str | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(str),
        metadata=about("Take the initial agent from this directory.", kind="path", metavar="DIR"),
    )
    run_baseline: str | None = option(
        None, "Disable a part of the method, for comparison.", check=OneOf(BASELINES), harmless=True
    )
    optimize_option: str = option(
        "only_agent", "What evolves.", check=OneOf(OPTIMIZE_OPTIONS), harmless=True
    )
    agent_archive_path: str | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(str),
        metadata=about(
            "With only_ensemble: the run whose agents the ensemble uses.",
            kind="path",
            metavar="RUN_DIR",
        ),
    )
    model: str | None = option(
        None, "Model for the agents; default: the agents choose.", metavar="NAME", harmless=True
    )
    gateway: str | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(str),
        metadata=about(
            "Models: TOML with [gateway], or replay:FILE or record:FILE.",
            metavar="FILE",
            changes=True,
            scores=True,
        ),
    )
    budget_requests: int | None = _budget("Model requests", "the run", AtLeast(1))
    budget_tokens: int | None = _budget("Tokens", "the run", AtLeast(1))
    budget_money: float | None = _budget("Money, at the gateway's prices,", "the run", ABOVE_ZERO)
    budget_generation_requests: int | None = _budget("Model requests", "one generation", AtLeast(1))
    budget_generation_tokens: int | None = _budget("Tokens", "one generation", AtLeast(1))
    budget_generation_money: float | None = _budget(
        "Money, at the gateway's prices,", "one generation", ABOVE_ZERO
    )
    image: str | None = option(
        None,
        "Recipe name or image reference; default: the domain's image.",
        metavar="REF",
        changes=True,
        scores=True,
        resume_help="Change the image for the remaining generations.",
        harmless=is_on_this_machine,
    )
    network: Network = option("none", "Network access of the containers.", check=OneOf(NETWORKS))  # noqa: RUF009
    allow: tuple[str, ...] = attrs.field(
        default=(),
        converter=_names,
        metadata=about(
            "Without another network: the servers that the containers reach, such as pypi.org or "
            "'*.example.org'; may be repeated.",
            kind="names",
        ),
    )
    limits: Limits = attrs.field(
        factory=lambda: Limits(disk_bytes=DEFAULT_DISK_BYTES),
        metadata=parts(limit_options(DEFAULT_PIDS, DEFAULT_DISK_BYTES)),
    )
    limits_mode: LimitsMode = option(  # noqa: RUF009
        "enforce",
        "watchdog: hyperrun watches the memory where the engine cannot limit it.",
        check=OneOf(LIMITS_MODES),
    )
    gpus: str | tuple[str, ...] | None = attrs.field(
        default="auto:1",
        converter=as_gpus,
        metadata=about(
            "GPUs of each container if a domain needs GPUs: all, auto:N, indices or CDI names.",
            kind="gpus",
            metavar="WHICH",
        ),
    )
    timeout_meta_s: float = _timeout(21600.0, "the meta agent")
    timeout_eval_s: float = _timeout(18000.0, "the evaluation of one split")
    timeout_report_s: float = _timeout(10800.0, "the report on one split")
    timeout_ensemble_s: float = _timeout(10800.0, "the ensemble on one split")
    timeout_select_s: float = _timeout(3600.0, "the agents' own parent selection")
    timeout_check_s: float = _timeout(300.0, "the load check")
    max_file_bytes: int = option(
        5 * MIB, "Leave larger files out of a diff.", check=AtLeast(1), harmless=True
    )
    max_change_bytes: int = option(
        16 * MIB,
        "Refuse a generation whose new and changed files are larger in all.",
        check=AtLeast(1),
        harmless=at_most(DEFAULT_MAX_CHANGE_BYTES),
    )

    def __attrs_post_init__(self) -> None:
        """Check the fields that have no validator, and combinations of fields."""
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise SpecError("domains", self.domains, "at least one name, no duplicates")
        if self.run_id is not None and not RUN_ID.fullmatch(self.run_id):
            raise SpecError("run_id", self.run_id, RUN_ID_FORM)
        if not self.output_dir_parent or "\0" in self.output_dir_parent:
            raise SpecError("output_dir_parent", self.output_dir_parent, "a directory of the host")
        network_of(self.network, self.allow)
        self._check_samples()
        self._check_combinations()

    @property
    def container_network(self) -> Network | Egress:
        """The network of the containers: ``network``, with the servers of ``allow``."""
        return network_of(self.network, self.allow)

    def change_rules(self, protected: Sequence[str]) -> ChangeRules:
        """Return the rules for the change of a generation.

        Args:
            protected: paths that no change may touch, as in :class:`ChangeRules`.
        """
        return ChangeRules(
            protected=protected,
            max_file_bytes=self.max_file_bytes,
            max_change_bytes=self.max_change_bytes,
        )

    def _check_combinations(self) -> None:
        """Reject options that would otherwise be ignored."""
        ensembles = self.optimize_option != "only_agent"
        if self.optimize_option == "only_ensemble" and self.agent_archive_path is None:
            raise SpecError(
                "optimize_option",
                self.optimize_option,
                "it requires --agent-archive-path, a finished run",
            )
        if self.agent_archive_path is not None and self.optimize_option != "only_ensemble":
            raise SpecError(
                "agent_archive_path",
                self.agent_archive_path,
                "it requires --optimize-option only_ensemble",
            )
        if ensembles and self.run_baseline == "no_archive":
            raise SpecError(
                "optimize_option", self.optimize_option, "the baseline no_archive has no ensemble"
            )
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
            raise SpecError(
                "eval_samples",
                self.eval_samples,
                f"one count for each of {len(self.domains)} domains",
            )

    def settled(self) -> GenerateOptions:
        """Return the options with the run id, the seed, the contract and an absolute path of the
        gateway file set.

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
            parent_selection="latest"
            if self.run_baseline == "no_archive"
            else self.parent_selection,
            gateway=None if self.gateway is None else absolute_source(self.gateway),
        )

    @property
    def score_settings(self) -> dict[str, Any]:
        """The options that a resume may change and that may change scores, by field."""
        found = (field for field in option_fields(GenerateOptions) if field.option.scores)
        return {field.path[0]: field.of(self) for field in found}

    @property
    def first_genid(self) -> GenId:
        """Id of the first generation: 0 if diffs may change the initial agent's answers, else
        ``"initial"``.
        """
        return 0 if self.meta_patch_files and not self.reset_task_agent else INITIAL

    @property
    def meta_patch_paths(self) -> list[str]:
        """The copies of the meta patches, relative to the run directory."""
        count = len(self.meta_patch_files)
        return [f"{META_PATCHES}/model_patch_{number}.diff" for number in range(count)]

    def samples(self, position: int) -> int | None:
        """Return how many tasks per split the domain at this position runs; None for all."""
        if self.eval_samples is None:
            return None
        number = self.eval_samples[position]
        return None if number == ALL_SAMPLES else number
