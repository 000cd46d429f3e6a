"""What a user asks of a run, validated once; imports spec and errors."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, get_args

import attrs

from hyperruntime.errors import ArchiveError, SpecError, unknown_name
from hyperruntime.loop.selection import SELECTIONS
from hyperruntime.spec import LIMITS_MODES, NETWORKS, Limits, LimitsMode, Network, as_gpus, check_seconds
from hyperruntime.units import MIB

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SEED_BITS = 32
ALL_SAMPLES = -1


def _names(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - what a caller hands in
    return (value,) if isinstance(value, str) else tuple(value)


def _counts(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)


def _count(least: int, allowed: str) -> Any:  # noqa: ANN401 - an attrs validator
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(attribute.name, value, allowed)

    return check


def _seconds(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    check_seconds(attribute.name, value)


@attrs.frozen(kw_only=True)
class GenerateOptions:
    """A run of the generate loop.

    Attributes:
        domains: names of what agents are evaluated on, in this order; the first names image and agent.
        agent: path of a git repository, or name of a shipped template; None is what the first domain names.
        max_generation: number of the last generation; 0 evaluates the initial agent only.
        run_id: the run directory is ``generate_<run_id>``; None is the time, UTC, to the microsecond.
        output_dir_parent: where run directories are made.
        seed: of every choice the run makes; None draws one, which is stored with the run. The same seed gives the same
            lineage with ``parallel=1``; with more, a parent is picked from those that have finished by then.
        parallel: how many generations run at once.
        parent_selection: how parents are chosen; see ``selection``.
        executor: entry point of ``hyperruntime.executors`` that runs generations.
        eval_samples: tasks per split for each domain, ``-1`` for all; None is all for each.
        skip_staged_eval: whether each generation is evaluated in full at once.
        image: reference or recipe; None is what the first domain names.
        network: of the containers.
        limits: of each container.
        limits_mode: as in a spec.
        gpus: of each container, as in a spec; asked for only where a domain needs GPUs.
        timeout_meta_s: seconds the meta agent may take.
        timeout_eval_s: seconds the evaluation of one split may take.
        timeout_check_s: seconds the load check may take.
        max_file_bytes: a larger new or changed file stays out of a generation's diff.
    """

    domains: tuple[str, ...] = attrs.field(converter=_names)
    agent: str | None = attrs.field(default=None, converter=attrs.converters.optional(str))
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
    skip_staged_eval: bool = False
    image: str | None = None
    network: Network = "none"
    limits: Limits = attrs.field(factory=Limits)
    limits_mode: LimitsMode = "enforce"
    gpus: str | tuple[str, ...] | None = attrs.field(default="auto:1", converter=as_gpus)
    timeout_meta_s: float = attrs.field(default=21600.0, validator=_seconds)
    timeout_eval_s: float = attrs.field(default=18000.0, validator=_seconds)
    timeout_check_s: float = attrs.field(default=300.0, validator=_seconds)
    max_file_bytes: int = attrs.field(default=5 * MIB, validator=_count(1, "a positive number of bytes"))

    def __attrs_post_init__(self) -> None:
        """Check what one field's own validator cannot."""
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise SpecError("domains", self.domains, "at least one name, each once")
        if self.parent_selection not in SELECTIONS:
            allowed = unknown_name("selection", self.parent_selection, SELECTIONS)
            raise SpecError("parent_selection", self.parent_selection, allowed)
        if self.network not in get_args(Network):
            raise SpecError("network", self.network, f"one of {', '.join(NETWORKS)}")
        if self.limits_mode not in LIMITS_MODES:
            raise SpecError("limits_mode", self.limits_mode, f"one of {', '.join(LIMITS_MODES)}")
        if self.run_id is not None and not _RUN_ID.fullmatch(self.run_id):
            raise SpecError("run_id", self.run_id, "letters, digits, '.', '_' and '-', at most 100")
        if not self.output_dir_parent or "\0" in self.output_dir_parent:
            raise SpecError("output_dir_parent", self.output_dir_parent, "a directory of the host")
        self._check_samples()

    def _check_samples(self) -> None:
        if self.eval_samples is None:
            return
        for number in self.eval_samples:
            if number < 1 and number != ALL_SAMPLES:
                raise SpecError("eval_samples", number, "a positive count of tasks, or -1 for all")
        if len(self.eval_samples) != len(self.domains):
            raise SpecError("eval_samples", self.eval_samples, f"one count for each of {len(self.domains)} domains")

    def settled(self) -> GenerateOptions:
        """Return the options with a run id and a seed."""
        now = datetime.now(UTC).strftime("%Y%m%d_%H%M%S_%f")
        seed = secrets.randbits(_SEED_BITS) if self.seed is None else self.seed
        return attrs.evolve(self, run_id=self.run_id or now, seed=seed)

    def samples(self, domain: str) -> int | None:
        """Return how many tasks of a split of this domain are run; None for all."""
        if self.eval_samples is None:
            return None
        number = self.eval_samples[self.domains.index(domain)]
        return None if number == ALL_SAMPLES else number


def options_to_json(options: GenerateOptions) -> dict[str, Any]:
    """Return the options as JSON values."""
    return attrs.asdict(options)


def options_from_json(value: Mapping[str, Any]) -> GenerateOptions:
    """Return the options that were stored; a field that this version does not know is left out.

    Raises:
        ArchiveError: they are not what a run stores.
    """
    try:
        known = {field.name for field in attrs.fields(GenerateOptions)}
        values = {name: item for name, item in value.items() if name in known}
        return GenerateOptions(**{**values, "limits": Limits(**values.get("limits", {}))})
    except (TypeError, ValueError, AttributeError) as error:
        raise ArchiveError(f"the stored options of the run cannot be used: {error}") from error
