"""Agent templates: folders with the files of an agent repository, found by entry point.

An entry point of the group ``hyperruntime.agents`` is the path of such a folder::

    AGENT = Path(__file__).with_name("agent")

A template that has no ``run_meta_agent.py`` gets ours. Design:
docs/design/loop.md#agent-templates.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hyperruntime import registry
from hyperruntime.errors import AgentError, unknown_name

LLM = Path(__file__).with_name("llm")
MUTATOR = Path(__file__).with_name("mutator")
SOLVER = Path(__file__).with_name("solver")
_SHARED = Path(__file__).with_name("shared")


def template_names() -> tuple[str, ...]:
    """Return the names of the installed agent templates; none is loaded."""
    return tuple(sorted(registry.plugins(registry.AGENTS)))


def is_template(agent: str) -> bool:
    """Return whether an agent, a template's name or a path, is a template."""
    return os.sep not in agent and agent in template_names()


def template_path(name: str) -> Path:
    """Return the folder of an agent template.

    Raises:
        AgentError: the name is unknown.
        DriverLoadError: the template is installed but cannot be loaded.
    """
    if not is_template(name):
        raise AgentError(
            unknown_name("agent template", name, template_names())
            + " (or give the path of a repository)"
        )
    return registry.load_agent_folder(name)


def agent_folder(agent: str) -> Path:
    """Return the folder with an agent's files.

    Args:
        agent: a template's name, or the path of a repository.

    Raises:
        DriverLoadError: it is a template that cannot be loaded.
    """
    return template_path(agent) if is_template(agent) else Path(agent)


def copy_template(name: str, target: Path) -> None:
    """Copy the files of an agent template to a directory, with our ``run_meta_agent.py`` if it has
    none.

    Args:
        name: of the template.
        target: the directory, which may exist.

    Raises:
        AgentError: the name is unknown.
        DriverLoadError: the template is installed but cannot be loaded.
        OSError: a file cannot be copied.
    """
    for folder in (_SHARED, template_path(name)):
        shutil.copytree(
            folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
