"""Which gateway a run has: by its options, a configuration file, the environment, and the agent's ``.env``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.agents import template_names
from hyperruntime.errors import GatewayConfigError
from hyperruntime.gateway.config.environment import borrowed_url, derive_config, read_dotenv
from hyperruntime.gateway.config.source import RECORD, load_source, require_servers
from hyperruntime.gateway.config.values import Budget, GatewayConfig, ModelRule
from hyperruntime.git.secret_filter import ENV_FILE
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions


def choose_gateway(
    options: GenerateOptions,
    agent: Path | None,
    layout: Layout,
    *,
    required: bool = False,
    asks_models: bool = False,
) -> GatewayConfig | None:
    """Return the gateway that a run has; None where nothing asks for one.

    A configuration is what counts. Without one, a model, a budget, a ``.env`` of the agent repository or
    ``asks_models`` asks for a gateway to the servers that the usual variables name, in the host's
    environment or in ``.env``.

    Args:
        options: of the run.
        agent: the agent repository's directory; None for one that is shipped.
        layout: of the run, whose directory need not be there yet.
        required: whether the run had one before, or its agent cannot do without.
        asks_models: whether its agent may ask models though no file of it says so.

    Raises:
        GatewayConfigError: there is no server, its key or configuration cannot be read, or money is to be counted
            where nothing has a price.
        SpecError: the model is not one of the configuration's.
    """
    config = _base(options, agent, required=required, asks_models=asks_models)
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
    """Do nothing where something costs money: else a budget of money would never end."""
    if not any(rule.input_price or rule.output_price for rule in models):
        raise GatewayConfigError(
            "a budget of money is given, and no model has a price; give input_price and output_price in a file with a "
            "table [gateway], or a budget of tokens"
        )


def agent_directory(agent: str) -> Path | None:
    """Return the directory of an agent that was checked; None for a shipped one."""
    return None if agent in template_names() and os.sep not in agent else Path(agent).absolute()


def stored_agent(root: Path, stored: Mapping[str, Any]) -> Path | None:
    """Return the agent's directory of a run that exists, by its directory and all that its ``run.json`` says."""
    imported = stored.get("imported") is True
    return agent_directory(os.path.join(root if imported else "", str(stored.get("agent", ""))))


def check_stored_servers(options: GenerateOptions, agent: Path | None, stored: Mapping[str, Any]) -> None:
    """Keep the host's keys from a server that an agent may have named.

    The work tree of a run that HyperAgents wrote, with its ``.env``, was open to all agents of it.

    Raises:
        GatewayConfigError: only the ``.env`` of such a work tree names the server that a key is for.
    """
    reads_it = options.gateway is None or options.gateway.startswith(RECORD)
    if stored.get("imported") is not True or agent is None or not reads_it:
        return
    if name := borrowed_url(agent / ENV_FILE):
        raise GatewayConfigError(
            f"{name} is only in {str(agent / ENV_FILE)!r}, where agents of the run could write it, and its key is in "
            "the environment; set both in the environment, or name a --gateway"
        )


def _base(options: GenerateOptions, agent: Path | None, *, required: bool, asks_models: bool) -> GatewayConfig | None:
    env_file = None if agent is None else agent / ENV_FILE
    if options.gateway is not None:
        return load_source(options.gateway, env_file)
    asked = {"model": options.model, "budget": _limits(options, "budget"), "budget ": generation_budget(options)}
    reasons = [name for name, value in asked.items() if value not in (None, Budget())]
    may_use = asks_models or (env_file is not None and read_dotenv(env_file))
    if not reasons and not required and not may_use:
        return None
    if not reasons and not required:
        return derive_config(env_file)
    why = f"a {reasons[0].strip()} is given" if reasons else "the agent asks models, or the run did before"
    return require_servers(env_file, why)


def _limits(options: GenerateOptions, prefix: str, base: Budget | None = None) -> Budget:
    """Return the limits of a budget that the options name, over those of a configuration."""
    names = [field.name for field in attrs.fields(Budget)]
    given = {name: getattr(options, f"{prefix}_{name}") for name in names}
    return attrs.evolve(base or Budget(), **{name: value for name, value in given.items() if value is not None})


def generation_budget(options: GenerateOptions) -> Budget:
    """Return what one generation may use."""
    return _limits(options, "budget_generation")
