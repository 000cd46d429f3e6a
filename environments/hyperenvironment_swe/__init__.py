"""The environment ``swe``: repair a repository; judged by its tests, in a container that the agent never saw."""

from hyperenvironment_swe.environment import Swe

__all__ = ["Swe"]
