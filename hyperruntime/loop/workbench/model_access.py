"""The models of a run: which gateway it has, and the access of each generation to it, its budget
and its usage.

The gateway follows from the options, a configuration file, the environment and the agent's
``.env``. A run without a gateway also has a :class:`ModelAccess`, which gives no access.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from hyperruntime.agents import is_template
from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import GatewayConfigError, GatewayError
from hyperruntime.gateway.config.source import (
    RECORD,
    derive_config,
    load_source,
    only_in_file,
    require_servers,
)
from hyperruntime.gateway.config.values import REPLAY, Budget, GatewayConfig, ModelRule
from hyperruntime.gateway.log.budget import Meter, Spent, total_spent
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.open_containers import LoopContainer
from hyperruntime.secrets.env_file import read_dotenv
from hyperruntime.storage.run_files import read_run_lines

if TYPE_CHECKING:
    from hyperruntime.gateway import Access, Gateway, Seat
    from hyperruntime.gateway.seat import Seats


class Models(Protocol):
    """The models as generations see them; thread-safe. :class:`ModelAccess` provides it where the
    gateway is.
    """

    def begin(self, genid: GenId) -> None:
        """Give a generation its whole budget; called for each attempt."""
        ...

    def usage(self, genid: GenId) -> Spent | None:
        """Return the usage of a generation in all attempts; None if it is not known here."""
        ...

    def open(self, container: LoopContainer, genid: GenId, step: str) -> Access | None:
        """Return a container's access to the models; None without a gateway."""
        ...


class ModelAccess(Closing):
    """The gateway of a run, open until :meth:`close`; thread-safe."""

    def __init__(self, config: GatewayConfig | None, options: GenerateOptions) -> None:
        """Open the gateway, if there is one; usage before a resume counts towards the budget of the
        run.

        Args:
            config: configuration of the gateway; None: no gateway.
            options: options of the run.

        Raises:
            GatewayError: the gateway cannot be opened, or its log cannot be read.
            StorageError: its log cannot be written.
        """
        self._config = config
        self._run = str(options.run_id)
        self._budget = generation_budget(options)
        self._gateway: Gateway | None = None
        self._before: dict[str, Spent] = {}
        self._meters: dict[str, Meter] = {}
        self._lock = threading.Lock()
        if config is not None:
            from hyperruntime.gateway import Gateway

            self._before = spent_by_generation(Path(str(config.log)), self._run)
            self._gateway = Gateway(config, total_spent(self._before.values()))

    @property
    def used_up(self) -> str:
        """One sentence about the limit of the run's budget that is reached; "" while there is
        budget.
        """
        return "" if self._gateway is None else self._gateway.used_up

    def begin(self, genid: GenId) -> None:
        """Give a generation its whole budget; called for each attempt."""
        with self._lock:
            key = str(genid)
            if (meter := self._meters.pop(key, None)) is not None:
                self._before[key] = self._before.get(key, Spent()) + meter.spent
            self._meters[key] = Meter(f"generation {genid}", self._budget)

    def usage(self, genid: GenId) -> Spent | None:
        """Return the usage of a generation in all attempts; None if the run has no gateway."""
        if self._gateway is None:
            return None
        with self._lock:
            meter = self._meters.get(str(genid))
            before = self._before.get(str(genid), Spent())
        return before if meter is None else before + meter.spent

    def open(self, container: LoopContainer, genid: GenId, step: str) -> Access | None:
        """Return a container's access to the models; None without a gateway.

        When a budget has refused a request of the container, it is closed after the gateway's grace
        time.

        Args:
            container: the container.
            genid: its generation, whose budget counts.
            step: name of the container in the log of exchanges.

        Raises:
            GatewayError: the image has no Python 3, the forwarder does not start, or the container
                does not belong to an engine.
        """
        if self._gateway is None or self._config is None:
            return None
        return open_access(
            self._gateway,
            container,
            f"{self._run}/{genid}/{step}",
            self._meter(genid),
            self._config.grace_s,
        )

    @property
    def grace_s(self) -> float | None:
        """Seconds that a container may run after a budget refused its first request; None without a
        gateway.
        """
        return None if self._config is None else self._config.grace_s

    def seat(self, genid: GenId, step: str, directory: str) -> Seat:
        """Return a seat of the gateway for a container of another machine, whose requests arrive in
        ``directory``.

        Args:
            genid: the container's generation, whose budget counts.
            step: name of the container in the log of exchanges.
            directory: directory of this machine in which the seat's socket is made.

        Raises:
            GatewayError: the run has no gateway, or the socket cannot be made.
        """
        if self._gateway is None:
            raise GatewayError("the run has no gateway")
        return self._gateway.seat(f"{self._run}/{genid}/{step}", directory, self._meter(genid))

    def _meter(self, genid: GenId) -> Meter:
        with self._lock:
            return self._meters.setdefault(str(genid), Meter(f"generation {genid}", self._budget))

    def close(self) -> None:
        """Close the gateway; idempotent."""
        if self._gateway is not None:
            self._gateway.close()


def open_access(
    seats: Seats, container: LoopContainer, name: str, meter: Meter | None, grace_s: float
) -> Access:
    """Return a container's access to the models; after a budget refused a request, the container
    ends.

    Args:
        seats: gives the container its seat.
        container: the container.
        name: name of the seat in the log of exchanges.
        meter: counts against a budget; None if ``seats`` knows it.
        grace_s: seconds from the first refused request to the end of the container.

    Raises:
        GatewayError: as for :meth:`ModelAccess.open`.
    """
    from hyperruntime.container import Container
    from hyperruntime.gateway import Access

    if not isinstance(container, Container):
        raise GatewayError("containers of this kind have no access to a gateway; use an engine")
    access = Access(seats, container, name, meter)
    ending = threading.Timer(grace_s, container.close)
    ending.daemon = True
    access.seat.when_refused(ending.start)
    return access


def choose_gateway(
    options: GenerateOptions,
    agent: Path | None,
    layout: Layout,
    *,
    offered: bool = False,
    required: bool = False,
) -> GatewayConfig | None:
    """Return the configuration of the run's gateway; None if the run needs no gateway.

    The option ``gateway`` has priority. Without it, a model, a budget, a ``.env`` of the agent
    repository or the agent's contract leads to a gateway for the servers in the usual variables of
    the host's environment or of ``.env``.

    Args:
        options: options of the run.
        agent: directory of the agent repository; None for a template.
        layout: paths of the run; its directory need not exist yet.
        offered: whether the contract offers models, see
            :class:`~hyperruntime.loop.generation.adapter.ContractAdapter`.
        required: whether a gateway is necessary: the run had one before, or the agent needs models.

    Raises:
        GatewayConfigError: a required server is missing, a key or the configuration cannot be read,
            the environment and ``.env`` each have one half of a key and its address, or a budget of
            money is set and no model has a price.
        SpecError: the configuration does not contain the model.
    """
    config = _base(options, _env_file(options, agent, layout), offered=offered, required=required)
    if config is None:
        return None
    if options.model is not None:
        config = config.with_model(options.model)
    for upstream in config.upstreams:
        upstream.check()
    budget = _limits(options, "budget", config.budget)
    if any(one.money is not None for one in (budget, generation_budget(options))):
        _check_prices(config.models[:1] if options.model is not None else config.models)
    return attrs.evolve(config, budget=budget, log=config.log or str(layout.exchanges))


def key_variables(config: GatewayConfig | None) -> tuple[str, ...]:
    """Return the names of the environment variables that have the gateway's keys."""
    return tuple(
        upstream.key_env for upstream in (config.upstreams if config else ()) if upstream.key_env
    )


def _check_prices(models: Sequence[ModelRule]) -> None:
    """Raise if no model has a price: a budget of money would then have no effect."""
    if not any(rule.input_price or rule.output_price for rule in models):
        raise GatewayConfigError(
            "a budget of money is given, but no model has a price; set input_price and "
            "output_price in a file with a table [gateway], or give a budget of tokens"
        )


def agent_directory(agent: str) -> Path | None:
    """Return the absolute directory of an agent; None for a template."""
    return None if is_template(agent) else Path(agent).absolute()


def stored_gateway(
    options: GenerateOptions, stored: Mapping[str, Any], layout: Layout, *, offered: bool
) -> GatewayConfig | None:
    """Return the configuration of the gateway for an existing run; None if it needs no gateway.

    Args:
        options: options of the run.
        stored: content of its ``run.json``.
        layout: paths of the run.
        offered: as for :func:`choose_gateway`.

    Raises:
        GatewayConfigError, SpecError: as for :func:`choose_gateway`.
    """
    required = stored.get("gateway") is True
    return choose_gateway(
        options, stored_agent(stored, layout), layout, offered=offered, required=required
    )


def stored_agent(stored: Mapping[str, Any], layout: Layout) -> Path | None:
    """Return the directory of the initial agent of an existing run; None for a template.

    Args:
        stored: content of its ``run.json``.
        layout: paths of the run; an imported run has its agent in its own directory.
    """
    imported = stored.get("imported") is True
    return agent_directory(
        os.path.join(layout.root if imported else "", str(stored.get("agent", "")))
    )


def _env_file(options: GenerateOptions, agent: Path | None, layout: Layout) -> Path | None:
    """Return the ``.env`` file that may name servers; None if there is none.

    A run directory is data, which anybody may have made: no configuration in it is used.

    Raises:
        GatewayConfigError: the gateway's file is in the run directory; or a ``.env`` there has
            variables that the environment does not have.
    """
    source = options.gateway or RECORD  # without the option, the variables name the servers
    if not source.startswith((RECORD, REPLAY)) and layout.contains(source):
        raise GatewayConfigError(
            f"the gateway's file {source!r} is in the run directory, which anybody may have "
            "made; check its content, copy it to another place, and give that with --gateway"
        )
    if agent is None or not layout.contains(agent / ENV_FILE):
        return None if agent is None else agent / ENV_FILE
    if source.startswith(RECORD) and (names := only_in_file(agent / ENV_FILE)):
        raise GatewayConfigError(
            f"{' and '.join(names)} is set only in {str(agent / ENV_FILE)!r}, in a run "
            "directory, which anybody may have made; set it in the environment, or give "
            "--gateway"
        )
    return None


def _base(
    options: GenerateOptions, env_file: Path | None, *, offered: bool, required: bool
) -> GatewayConfig | None:
    if options.gateway is not None:
        return load_source(options.gateway, env_file)
    if options.model is not None:
        return require_servers(env_file, "a model is given")
    if any(one != Budget() for one in (_limits(options, "budget"), generation_budget(options))):
        return require_servers(env_file, "a budget is given")
    if required:
        return require_servers(env_file, "the agent asks models, or the run did before")
    may_use = offered or (env_file is not None and read_dotenv(env_file))
    return derive_config(env_file) if may_use else None


def _limits(options: GenerateOptions, prefix: str, base: Budget | None = None) -> Budget:
    """Return a budget; the limits in the options override those of ``base``."""
    names = [field.name for field in attrs.fields(Budget)]
    given = {name: getattr(options, f"{prefix}_{name}") for name in names}
    return attrs.evolve(
        base or Budget(), **{name: value for name, value in given.items() if value is not None}
    )


def generation_budget(options: GenerateOptions) -> Budget:
    """Return the budget of one generation."""
    return _limits(options, "budget_generation")


def evaluation_models(
    options: GenerateOptions, stored: Mapping[str, Any], layout: Layout, *, offered: bool
) -> ModelAccess:
    """Return the models for a separate evaluation: without the run's budgets, and with its own log.

    Args:
        options: options of the run.
        stored: content of its ``run.json``.
        layout: paths of the run.
        offered: as for :func:`choose_gateway`.

    Raises:
        GatewayError, SpecError: as for :func:`choose_gateway`.
        StorageError: the log cannot be written.
    """
    free: dict[str, Any] = {
        name: None for name in attrs.fields_dict(GenerateOptions) if name.startswith("budget_")
    }
    options = attrs.evolve(options, **free)
    config = stored_gateway(options, stored, layout, offered=offered)
    log = layout.evaluations / layout.exchanges.name
    return ModelAccess(None if config is None else attrs.evolve(config, log=str(log)), options)


def spent_by_generation(log: Path, run_id: str) -> dict[str, Spent]:
    """Return the usage of each generation of a run from the log of exchanges; invalid lines are
    skipped.

    Args:
        log: the log of exchanges; it may be missing.
        run_id: id of the run; lines of other runs are skipped.

    Raises:
        GatewayError: the log cannot be read.
    """
    found: dict[str, Spent] = {}
    try:
        for line in read_run_lines(log, below=log.parent):
            if (known := _spent_of(line, run_id)) is not None:
                found[known[0]] = found.get(known[0], Spent()) + known[1]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise GatewayError(
            f"{log} cannot be read: {error.strerror}; it contains the run's usage so far"
        ) from error
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
