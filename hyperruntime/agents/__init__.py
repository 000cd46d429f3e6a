"""Agent templates: each folder is an agent repository.

May import ``registry`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

from hyperruntime.errors import AgentError, unknown_name

_MARK, _SHARED = "hyperrun.toml", "shared"


def template_names() -> tuple[str, ...]:
    """Return the names of the agent templates."""
    folder = resources.files("hyperruntime.agents")
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / _MARK).is_file()))


def is_template(agent: str) -> bool:
    """Return whether an agent, a template's name or a path, is a template."""
    return os.sep not in agent and agent in template_names()


def template_path(name: str) -> Path:
    """Return the folder of an agent template.

    Raises:
        AgentError: the name is unknown.
    """
    if name not in template_names():
        raise AgentError(unknown_name("agent template", name, template_names()) + ", or give the path of a repository")
    with resources.as_file(resources.files("hyperruntime.agents") / name) as folder:
        return folder


def copy_template(name: str, target: Path) -> None:
    """Copy the files of an agent template to a directory, with those that all templates share.

    Args:
        name: of the template.
        target: the directory, which may exist.

    Raises:
        AgentError: the name is unknown.
        OSError: a file cannot be copied.
    """
    own = template_path(name)
    for folder in (own, own.with_name(_SHARED)):
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
