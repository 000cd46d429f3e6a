"""Sandbox interfaces of other programs, on top of our slot pools, and what several integrations
share. What one framework alone needs is in its package below ``integrations``. Design:
docs/design/pool.md#other-programs-interfaces.

``environment.py`` is one task's shell without asyncio. ``tool_backend.py`` has the slots of many
trajectories, and ``foreign_config.py`` reads the pool settings of such programs.
``shared_runtime.py`` is the open runtime of a process, and ``compose.py`` reads a service of a
compose file.
"""
