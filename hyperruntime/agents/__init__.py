"""Agent templates: each folder is an agent repository.

May import ``registry`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hyperruntime.errors import AgentError, unknown_name

_MARK = "hyperrun.toml"


def template_names() -> tuple[str, ...]:
    """Return the names of the agent templates."""
    folder = resources.files("hyperruntime.agents")
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / _MARK).is_file()))


def template_path(name: str) -> Path:
    """Return the folder of an agent template.

    Raises:
        AgentError: the name is unknown.
    """
    if name not in template_names():
        raise AgentError(unknown_name("agent template", name, template_names()) + ", or give the path of a repository")
    with resources.as_file(resources.files("hyperruntime.agents") / name) as folder:
        return folder
