"""The environment ``swe``: repair a repository; hidden tests decide, in a fresh container."""

from hyperenvironment_swe.environment import Swe

__all__ = ["Swe"]
