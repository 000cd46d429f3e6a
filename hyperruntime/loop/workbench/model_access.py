"""The models of a run: what each generation may use of its gateway, and what it used.

A run without a gateway has :class:`ModelAccess` too, and nothing of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.errors import GatewayError
from hyperruntime.gateway.config.values import Budget, GatewayConfig
from hyperruntime.gateway.log.budget import Meter, Spent, total_spent
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.gateway_choice import (
    check_stored_servers,
    choose_gateway,
    generation_budget,
    stored_agent,
)
from hyperruntime.loop.workbench.open_containers import LoopContainer

if TYPE_CHECKING:
    from hyperruntime.gateway import Access, Gateway

_NONE: Mapping[str, str] = {}


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
        """Do nothing while there is budget, and somebody who answers.

        Raises:
            BudgetExceededError: a request was refused because a budget is used up.
            GatewayError: the server failed the last request.
        """
        if self._access is not None:
            self._access.seat.check()

    def close(self) -> None:
        """Take the way away; may be called again."""
        if self._access is not None:
            self._access.close()
        if self._timer is not None:
            self._timer.cancel()


class ModelAccess:
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
            self._run, self._budget = str(options.run_id), generation_budget(options)
            self._before = spent_by_generation(Path(str(config.log)), self._run)
            self._gateway = _open_gateway(config, total_spent(self._before.values()))

    @property
    def used_up(self) -> str:
        """Which limit of the run's budget is reached, in a sentence; nothing while there is budget."""
        return "" if self._gateway is None else self._gateway.used_up

    def begin(self, genid: GenId) -> None:
        """Give a generation, or another attempt at it, its whole budget."""
        with self._lock:
            key = str(genid)
            if (meter := self._meters.pop(key, None)) is not None:
                self._before[key] = total_spent((self._before.get(key, Spent()), meter.spent))
            self._meters[key] = Meter(f"generation {genid}", self._budget)

    def usage(self, genid: GenId) -> Spent | None:
        """Return what a generation used, with all attempts at it; None where the run has no gateway."""
        if self._gateway is None:
            return None
        with self._lock:
            meter = self._meters.get(str(genid))
            before = self._before.get(str(genid), Spent())
        return before if meter is None else total_spent((before, meter.spent))

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

    def __enter__(self) -> ModelAccess:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, whatever happened."""
        self.close()


def evaluation_models(
    options: GenerateOptions, stored: Mapping[str, Any], folder: Path, *, asks_models: bool
) -> ModelAccess:
    """Return the models of an evaluation that is no part of its run: no budget of the run, and a log of its own.

    Args:
        options: of the run. stored: all that its ``run.json`` says. folder: of the run's, takes the log.
        asks_models: as for :func:`choose_gateway`.

    Raises:
        GatewayError, SpecError: as for :func:`choose_gateway`.
        StorageError: the log cannot be written.
    """
    free: dict[str, Any] = {name: None for name in attrs.fields_dict(GenerateOptions) if name.startswith("budget_")}
    options = attrs.evolve(options, **free)
    agent, layout = stored_agent(folder.parent, stored), Layout(folder)
    check_stored_servers(options, agent, stored)
    config = choose_gateway(options, agent, layout, required=stored.get("gateway") is True, asks_models=asks_models)
    return ModelAccess(None if config is None else attrs.evolve(config, log=str(layout.exchanges)), options)


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
                    found[known[0]] = total_spent((found.get(known[0], Spent()), known[1]))
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


def _open_gateway(config: GatewayConfig, spent: Spent) -> Gateway:
    from hyperruntime.gateway import Gateway

    return Gateway(config, spent)
