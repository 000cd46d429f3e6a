"""Choose the gateway of a run from its options, a configuration file, the environment and the agent's ``.env``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.agents import is_template
from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway.config.environment import borrowed_url, derive_config, read_dotenv
from hyperruntime.gateway.config.source import RECORD, load_source, require_servers
from hyperruntime.gateway.config.values import Budget, GatewayConfig, ModelRule
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.loop.run_files.contract import HYPERAGENTS
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions


def choose_gateway(
    options: GenerateOptions, agent: Path | None, layout: Layout, *, required: bool = False
) -> GatewayConfig | None:
    """Return the configuration of the run's gateway; None if the run needs no gateway.

    The option ``gateway`` has priority. Without it, a model, a budget, a ``.env`` of the agent repository or the
    contract ``hyperagents`` leads to a gateway for the servers in the usual variables of the host's environment or of
    ``.env``.

    Args:
        options: options of the run.
        agent: directory of the agent repository; None for a shipped agent.
        layout: paths of the run; its directory need not exist yet.
        required: whether a gateway is necessary: the run had one before, or the agent needs models.

    Raises:
        GatewayConfigError: a required server is missing, a key or the configuration cannot be read, or a budget of
            money is set and no model has a price.
        SpecError: the configuration does not contain the model.
    """
    config = _base(options, agent, required=required)
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


def _check_prices(models: Sequence[ModelRule]) -> None:
    """Raise if no model has a price: a budget of money would then have no effect."""
    if not any(rule.input_price or rule.output_price for rule in models):
        raise GatewayConfigError(
            "a budget of money is given, but no model has a price; set input_price and output_price in a file with a "
            "table [gateway], or give a budget of tokens"
        )


def agent_directory(agent: str) -> Path | None:
    """Return the absolute directory of an agent; None for a shipped agent."""
    return None if is_template(agent) else Path(agent).absolute()


def stored_agent(root: Path, stored: Mapping[str, Any]) -> Path | None:
    """Return the agent's directory of an existing run; None for a shipped agent.

    Args:
        root: the run directory.
        stored: content of its ``run.json``.
    """
    imported = stored.get("imported") is True
    return agent_directory(os.path.join(root if imported else "", str(stored.get("agent", ""))))


def check_stored_servers(options: GenerateOptions, agent: Path | None, stored: Mapping[str, Any]) -> None:
    """Raise if an agent may have chosen the server that receives a key of the host.

    The agents of a run that HyperAgents wrote could change its work tree, and so its ``.env``.

    Args:
        options: options of the run.
        agent: directory of the agent; None for a shipped agent.
        stored: content of the ``run.json`` of the run.

    Raises:
        GatewayConfigError: the environment has a key, and only the ``.env`` of such a work tree names its server.
    """
    reads_it = options.gateway is None or options.gateway.startswith(RECORD)
    if stored.get("imported") is not True or agent is None or not reads_it:
        return
    if name := borrowed_url(agent / ENV_FILE):
        raise GatewayConfigError(
            f"{name} is set only in {str(agent / ENV_FILE)!r}, which agents of the run could change, but its key is in "
            "the environment; set both in the environment, or give --gateway"
        )


def stored_gateway(
    options: GenerateOptions, stored: Mapping[str, Any], root: Path, layout: Layout
) -> GatewayConfig | None:
    """Return the configuration of the gateway for an existing run; None if it needs no gateway.

    Args:
        options: options of the run.
        stored: content of its ``run.json``.
        root: the run directory.
        layout: paths for the log of exchanges.

    Raises:
        GatewayConfigError, SpecError: as for :func:`choose_gateway` and :func:`check_stored_servers`.
    """
    agent, required = stored_agent(root, stored), stored.get("gateway") is True
    check_stored_servers(options, agent, stored)
    return choose_gateway(options, agent, layout, required=required)


def _base(options: GenerateOptions, agent: Path | None, *, required: bool) -> GatewayConfig | None:
    env_file = None if agent is None else agent / ENV_FILE
    if options.gateway is not None:
        return load_source(options.gateway, env_file)
    asked = {"model": options.model, "budget": _limits(options, "budget"), "budget ": generation_budget(options)}
    reasons = [name for name, value in asked.items() if value not in (None, Budget())]
    asks_models = options.contract == HYPERAGENTS  # although none of the agent's files says so
    may_use = asks_models or (env_file is not None and read_dotenv(env_file))
    if not reasons and not required and not may_use:
        return None
    if not reasons and not required:
        return derive_config(env_file)
    why = f"a {reasons[0].strip()} is given" if reasons else "the agent asks models, or the run did before"
    return require_servers(env_file, why)


def _limits(options: GenerateOptions, prefix: str, base: Budget | None = None) -> Budget:
    """Return a budget; the limits in the options override those of ``base``."""
    names = [field.name for field in attrs.fields(Budget)]
    given = {name: getattr(options, f"{prefix}_{name}") for name in names}
    return attrs.evolve(base or Budget(), **{name: value for name, value in given.items() if value is not None})


def generation_budget(options: GenerateOptions) -> Budget:
    """Return the budget of one generation."""
    return _limits(options, "budget_generation")
