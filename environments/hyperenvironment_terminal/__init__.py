"""Terminal tasks for ``hyperrun rollout``, in the formats of Harbor (Terminal-Bench 2) and
endless-terminals.
"""

from hyperenvironment_terminal.environment import Terminal

__all__ = ["Terminal"]
