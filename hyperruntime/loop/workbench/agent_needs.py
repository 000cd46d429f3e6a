"""What an agent cannot do without: its image, and models.

The ``[agent]`` table of its ``hyperrun.toml`` says so::

    [agent]
    image = "agent"     # a recipe or a reference, used where domains need no more than the base image
    models = true       # it asks language models, so a run without any is not begun
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import attrs

from hyperruntime.agents import template_names, template_path
from hyperruntime.errors import AgentError
from hyperruntime.loop.run_files.contract import CONTRACT_FILE


@attrs.frozen(kw_only=True)
class AgentNeeds:
    """What an agent cannot do without.

    Attributes:
        image: a recipe or a reference; None where any image that suits the domains will do.
        models: whether it asks language models.
    """

    image: str | None = None
    models: bool = False


def agent_needs(agent: str) -> AgentNeeds:
    """Return what an agent asks for, a template or a repository's directory.

    Raises:
        AgentError: its contract cannot be read.
    """
    shipped = agent in template_names() and os.sep not in agent
    file = (template_path(agent) if shipped else Path(agent)) / CONTRACT_FILE
    return parse_needs(file.read_bytes()) if file.is_file() else AgentNeeds()


def parse_needs(data: bytes) -> AgentNeeds:
    """Return what a ``hyperrun.toml`` asks for.

    Raises:
        AgentError: it is no TOML, or a value is not of the allowed form.
    """
    try:
        table = tomllib.loads(data.decode()).get("agent", {})
    except ValueError as error:
        raise AgentError(f"{CONTRACT_FILE} of the agent repository is no TOML: {error}") from error
    if not isinstance(table, dict):
        raise AgentError(f"{CONTRACT_FILE}: [agent] must be a table")
    image, models = table.get("image"), table.get("models", False)
    if image is not None and (not isinstance(image, str) or not image):
        raise AgentError(f"{CONTRACT_FILE}: agent.image={image!r} is not allowed: a recipe or an image reference")
    if not isinstance(models, bool):
        raise AgentError(f"{CONTRACT_FILE}: agent.models={models!r} is not allowed: true or false")
    return AgentNeeds(image=image, models=models)
