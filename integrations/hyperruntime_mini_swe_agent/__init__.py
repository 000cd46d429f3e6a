"""An environment of mini-swe-agent: ``environment_class:
hyperruntime_mini_swe_agent.Environment``.
"""

from hyperruntime_mini_swe_agent.environment import Environment, EnvironmentConfig

__all__ = ["Environment", "EnvironmentConfig"]
