"""The models of a run: which gateway it has, what each generation may use of it, and what it used.

Imports the gateway, options and layout. A run without a gateway has :class:`Models` too, and nothing of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.errors import GatewayError
from hyperruntime.gateway.budget import Meter, Spent
from hyperruntime.gateway.config import Budget, GatewayConfig
from hyperruntime.gateway.configfile import load_config
from hyperruntime.gateway.derive import derive_config, read_dotenv
from hyperruntime.loop.layout import Layout
from hyperruntime.loop.options import GenerateOptions
from hyperruntime.loop.running import LoopContainer
from hyperruntime.loop.selection import GenId
from hyperruntime.secretfree import ENV_FILE

if TYPE_CHECKING:
    from hyperruntime.gateway import Access, Gateway

_NONE: Mapping[str, str] = {}


def choose_gateway(
    options: GenerateOptions, agent: Path | None, layout: Layout, *, required: bool = False
) -> GatewayConfig | None:
    """Return the gateway that a run has; None where nothing asks for one.

    A configuration file is what counts. Without one, a model, a budget, a ``.env`` of the agent repository or the
    contract ``hyperagents`` asks for a gateway to the servers that the usual variables name, in the host's
    environment or in ``.env``.

    Args:
        options: of the run.
        agent: the agent repository's directory; None for one that is shipped.
        layout: of the run, whose directory need not be there yet.
        required: whether the run had one before, or its agent cannot do without.

    Raises:
        GatewayError: there is no server, or its key or configuration cannot be read.
        SpecError: the model is not one of the configuration's.
    """
    config = _base(options, agent, required=required)
    if config is None:
        return None
    if options.model is not None:
        config = config.with_model(options.model)
    for upstream in config.upstreams:
        upstream.load_key()
    budget = _limits(options, "budget", config.budget)
    return attrs.evolve(config, budget=budget, log=config.log or str(layout.exchanges))


def _base(options: GenerateOptions, agent: Path | None, *, required: bool) -> GatewayConfig | None:
    if options.gateway is not None:
        return load_config(Path(options.gateway))
    env_file = None if agent is None else agent / ENV_FILE
    asked = {"model": options.model, "budget": _limits(options, "budget"), "budget ": _generation_budget(options)}
    reasons = [name for name, value in asked.items() if value not in (None, Budget())]
    may_use = options.contract == "hyperagents" or (env_file is not None and read_dotenv(env_file))
    if not reasons and not required and not may_use:
        return None
    config = derive_config(env_file)
    if config is None and (reasons or required):
        why = f"a {reasons[0].strip()} is given" if reasons else "the agent asks models, or the run did before"
        raise GatewayError(
            f"{why}, and no server that has any: set OPENAI_API_KEY or OPENAI_BASE_URL, or those of ANTHROPIC, in "
            "the environment or in the agent's .env, or give --config FILE with a table [gateway]"
        )
    return config


def _limits(options: GenerateOptions, prefix: str, base: Budget | None = None) -> Budget:
    """Return the limits of a budget that the options name, over those of a configuration."""
    names = [field.name for field in attrs.fields(Budget)]
    given = {name: getattr(options, f"{prefix}_{name}") for name in names}
    return attrs.evolve(base or Budget(), **{name: value for name, value in given.items() if value is not None})


def _generation_budget(options: GenerateOptions) -> Budget:
    return _limits(options, "budget_generation")


class Way:
    """One container's way to the models, or none.

    Attributes:
        env: the variables that a command in it needs.
    """

    def __init__(self, access: Access | None = None) -> None:
        """Have a way, or none."""
        self._access = access
        self._timer: threading.Timer | None = None
        self.env: Mapping[str, str] = _NONE if access is None else access.env

    def end_after(self, grace_s: float, container: LoopContainer) -> None:
        """End the container some time after a budget refused it anything."""
        if self._access is None:
            return
        self._timer = threading.Timer(grace_s, container.close)
        self._timer.daemon = True
        self._access.seat.when_refused(self._timer.start)

    def check(self) -> None:
        """Do nothing while there is budget.

        Raises:
            BudgetExceededError: a request was refused because a budget is used up.
        """
        if self._access is not None:
            self._access.seat.check()

    def close(self) -> None:
        """Take the way away; may be called again."""
        if self._access is not None:
            self._access.close()
        if self._timer is not None:
            self._timer.cancel()


class Models:
    """The gateway of a run, open until it is closed; safe to use from many threads."""

    def __init__(self, config: GatewayConfig | None = None, options: GenerateOptions | None = None) -> None:
        """Open the gateway, if there is one; what the run used in earlier sittings counts.

        Raises:
            GatewayError: it cannot be opened.
            StorageError: its log cannot be written.
        """
        self._config, self._run = config, ""
        self._gateway: Gateway | None = None
        self._budget = Budget()
        self._before: dict[str, Spent] = {}
        self._meters: dict[str, Meter] = {}
        self._lock = threading.Lock()
        if config is not None and options is not None:
            self._run, self._budget = str(options.run_id), _generation_budget(options)
            self._before = spent_by_generation(Path(str(config.log)), self._run)
            self._gateway = _open_gateway(config, _sum(self._before.values()))

    @property
    def used_up(self) -> str:
        """Which limit of the run's budget is reached, in a sentence; nothing while there is budget."""
        return "" if self._gateway is None else self._gateway.used_up

    def begin(self, genid: GenId) -> None:
        """Give a generation, or another attempt at it, its whole budget."""
        with self._lock:
            key = str(genid)
            if (meter := self._meters.pop(key, None)) is not None:
                self._before[key] = _sum((self._before.get(key, Spent()), meter.spent))
            self._meters[key] = Meter(f"generation {genid}", self._budget)

    def usage(self, genid: GenId) -> Spent | None:
        """Return what a generation used, with all attempts at it; None where the run has no gateway."""
        if self._gateway is None:
            return None
        with self._lock:
            meter = self._meters.get(str(genid))
            before = self._before.get(str(genid), Spent())
        return before if meter is None else _sum((before, meter.spent))

    def open(self, container: LoopContainer, genid: GenId, step: str) -> Way:
        """Return a container's way to the models.

        Raises:
            GatewayError: the container's image has no Python 3, or it has no place for a socket.
        """
        if self._gateway is None or self._config is None:
            return Way()
        from hyperruntime.container import Container
        from hyperruntime.gateway import Access

        if not isinstance(container, Container):
            raise GatewayError("containers of this kind have no way to a gateway; use an engine")
        name = f"{self._run}/{genid}/{step}"
        with self._lock:
            meter = self._meters.setdefault(str(genid), Meter(f"generation {genid}", self._budget))
        way = Way(Access(self._gateway, container, name, meter))
        way.end_after(self._config.grace_s, container)
        return way

    def close(self) -> None:
        """Close the gateway; may be called again."""
        if self._gateway is not None:
            self._gateway.close()

    def __enter__(self) -> Models:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened."""
        self.close()


def spent_by_generation(log: Path, run_id: str) -> dict[str, Spent]:
    """Return what each generation of a run used, by the log of exchanges; a line that is torn is passed over.

    Raises:
        GatewayError: the log cannot be read.
    """
    found: dict[str, Spent] = {}
    try:
        with open(log, "rb") as lines:
            for line in lines:
                if (known := _spent_of(line, run_id)) is not None:
                    found[known[0]] = _sum((found.get(known[0], Spent()), known[1]))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise GatewayError(f"{log} cannot be read: {error}; what the run used so far is in it") from error
    return found


def _spent_of(line: bytes, run_id: str) -> tuple[str, Spent] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
        run, genid, _ = entry["seat"].split("/")
        usage = entry["usage"]
        if run != run_id or usage is None:
            return None
        tokens = {name: int(usage[name]) for name in ("input_tokens", "output_tokens")}
        return genid, Spent(requests=1, money=float(entry["money"]), **tokens)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _sum(parts: Iterable[Spent]) -> Spent:
    total = Spent()
    for part in parts:
        total = Spent(**{name: getattr(total, name) + getattr(part, name) for name in attrs.fields_dict(Spent)})
    return total


def _open_gateway(config: GatewayConfig, spent: Spent) -> Gateway:
    from hyperruntime.gateway import Gateway

    return Gateway(config, spent)
