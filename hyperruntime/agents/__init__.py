"""Agent repositories that ship as templates: each folder is one.

May import ``registry`` and what stands before it in ``tests/unit/test_folders.py``.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from hyperruntime.errors import AgentError, unknown_name

_MARK = "hyperrun.toml"


def template_names() -> tuple[str, ...]:
    """Return the names of the shipped templates."""
    folder = resources.files("hyperruntime.agents")
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / _MARK).is_file()))


def template_path(name: str) -> Path:
    """Return the folder of a shipped template.

    Raises:
        AgentError: there is none of this name.
    """
    if name not in template_names():
        raise AgentError(unknown_name("agent template", name, template_names()) + ", or give a git repository's path")
    with resources.as_file(resources.files("hyperruntime.agents") / name) as folder:
        return folder
