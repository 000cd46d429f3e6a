"""The requirements of an agent: its image, and whether it needs models.

The ``[agent]`` table of its ``hyperrun.toml`` states them::

    [agent]
    image = "agent"     # a recipe or an image reference, used if the domains need only the base image
    models = true       # the agent asks language models; a run without models does not start
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
    """The requirements of an agent.

    Attributes:
        image: a recipe or an image reference; None: the image of the domains is enough.
        models: whether the agent asks language models.
    """

    image: str | None = None
    models: bool = False


def agent_needs(agent: str) -> AgentNeeds:
    """Return the requirements of an agent, given as a template name or a repository's directory.

    Raises:
        AgentError: its ``hyperrun.toml`` is invalid.
    """
    shipped = agent in template_names() and os.sep not in agent
    file = (template_path(agent) if shipped else Path(agent)) / CONTRACT_FILE
    return parse_needs(file.read_bytes()) if file.is_file() else AgentNeeds()


def parse_needs(data: bytes) -> AgentNeeds:
    """Return the requirements that a ``hyperrun.toml`` states.

    Raises:
        AgentError: the file is not valid TOML, or a value is invalid.
    """
    try:
        table = tomllib.loads(data.decode()).get("agent", {})
    except ValueError as error:
        raise AgentError(f"{CONTRACT_FILE} of the agent repository is not valid TOML: {error}") from error
    if not isinstance(table, dict):
        raise AgentError(f"{CONTRACT_FILE}: [agent] must be a table")
    image, models = table.get("image"), table.get("models", False)
    if image is not None and (not isinstance(image, str) or not image):
        raise AgentError(f"{CONTRACT_FILE}: agent.image={image!r} is not allowed: a recipe or an image reference")
    if not isinstance(models, bool):
        raise AgentError(f"{CONTRACT_FILE}: agent.models={models!r} is not allowed: true or false")
    return AgentNeeds(image=image, models=models)
