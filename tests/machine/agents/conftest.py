"""Fixtures of the template ``llm``: its modules, and a scripted model."""

from tests.unit.agents.llmtemplate import agent, start

__all__ = ["agent", "start"]
