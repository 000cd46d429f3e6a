"""Slots in verl: ``AgentLoop`` runs the episodes of an environment, and ``BashTool`` is a tool of
verl's own loop.
"""

from hyperruntime_verl.agent_loop import AgentLoop, dataset_rows
from hyperruntime_verl.tool import BashTool

__all__ = ["AgentLoop", "BashTool", "dataset_rows"]
