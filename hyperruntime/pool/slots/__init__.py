"""Slots inside a container: their users and directories, their isolation and their reset.

May import ``gateway`` and what stands before it in ``tests/unit/test_folders.py``.
"""
