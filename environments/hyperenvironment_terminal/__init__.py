"""Tasks at a terminal, for ``hyperrun rollout``: Harbor's (Terminal-Bench 2) and endless-terminals'."""

from hyperenvironment_terminal.environment import Terminal

__all__ = ["Terminal"]
