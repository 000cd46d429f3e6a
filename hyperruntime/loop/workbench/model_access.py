"""The models of a run: the access of each generation to the gateway, its budget and its usage.

A run without a gateway also has a :class:`ModelAccess`, which gives no access.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import GatewayError
from hyperruntime.gateway.config.values import Budget, GatewayConfig
from hyperruntime.gateway.log.budget import Meter, Spent, total_spent
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.gateway_choice import generation_budget, stored_gateway
from hyperruntime.loop.workbench.open_containers import LoopContainer

if TYPE_CHECKING:
    from hyperruntime.gateway import Access, Gateway


class ModelAccess(Closing):
    """The gateway of a run, open until :meth:`close`; thread-safe."""

    def __init__(self, config: GatewayConfig | None = None, options: GenerateOptions | None = None) -> None:
        """Open the gateway, if there is one; usage before a resume counts towards the budget of the run.

        Args:
            config: configuration of the gateway; None: no gateway.
            options: options of the run; None: no gateway.

        Raises:
            GatewayError: the gateway cannot be opened, or its log cannot be read.
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
        """One sentence about the limit of the run's budget that is reached; "" while there is budget."""
        return "" if self._gateway is None else self._gateway.used_up

    def begin(self, genid: GenId) -> None:
        """Give a generation its whole budget; called for each attempt."""
        with self._lock:
            key = str(genid)
            if (meter := self._meters.pop(key, None)) is not None:
                self._before[key] = total_spent((self._before.get(key, Spent()), meter.spent))
            self._meters[key] = Meter(f"generation {genid}", self._budget)

    def usage(self, genid: GenId) -> Spent | None:
        """Return the usage of a generation in all attempts; None if the run has no gateway."""
        if self._gateway is None:
            return None
        with self._lock:
            meter = self._meters.get(str(genid))
            before = self._before.get(str(genid), Spent())
        return before if meter is None else total_spent((before, meter.spent))

    def open(self, container: LoopContainer, genid: GenId, step: str) -> Access | None:
        """Return a container's access to the models; None without a gateway.

        A container ends the grace time of the gateway after a budget refused its first request.

        Args:
            container: the container.
            genid: its generation, whose budget counts.
            step: name of the container in the log of exchanges.

        Raises:
            GatewayError: the image has no Python 3, the forwarder does not start, or the container does not belong to
                an engine.
        """
        if self._gateway is None or self._config is None:
            return None
        from hyperruntime.container import Container
        from hyperruntime.gateway import Access

        if not isinstance(container, Container):
            raise GatewayError("containers of this kind have no access to a gateway; use an engine")
        name = f"{self._run}/{genid}/{step}"
        with self._lock:
            meter = self._meters.setdefault(str(genid), Meter(f"generation {genid}", self._budget))
        access = Access(self._gateway, container, name, meter)
        ending = threading.Timer(self._config.grace_s, container.close)
        ending.daemon = True
        access.seat.when_refused(ending.start)
        return access

    def close(self) -> None:
        """Close the gateway; idempotent."""
        if self._gateway is not None:
            self._gateway.close()


def evaluation_models(options: GenerateOptions, stored: Mapping[str, Any], folder: Path) -> ModelAccess:
    """Return the models for a separate evaluation: without the run's budgets, and with its own log.

    Args:
        options: options of the run.
        stored: content of its ``run.json``.
        folder: directory for the log, directly below the run directory.

    Raises:
        GatewayError, SpecError: as for :func:`choose_gateway`.
        StorageError: the log cannot be written.
    """
    free: dict[str, Any] = {name: None for name in attrs.fields_dict(GenerateOptions) if name.startswith("budget_")}
    options = attrs.evolve(options, **free)
    layout = Layout(folder)
    config = stored_gateway(options, stored, folder.parent, layout)
    return ModelAccess(None if config is None else attrs.evolve(config, log=str(layout.exchanges)), options)


def spent_by_generation(log: Path, run_id: str) -> dict[str, Spent]:
    """Return the usage of each generation of a run from the log of exchanges; invalid lines are skipped.

    Args:
        log: the log of exchanges; it may be missing.
        run_id: id of the run; lines of other runs are skipped.

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
        raise GatewayError(f"{log} cannot be read: {error}; it contains the run's usage so far") from error
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
