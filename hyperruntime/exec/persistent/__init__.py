"""Persistent shells: one bash in a container that runs many commands.

May import ``exec`` and what stands before it in ``tests/unit/test_folders.py``.
"""
