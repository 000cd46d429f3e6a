"""Slots inside a container: their users and directories, and how they are kept apart and made new.

May import ``pool.values`` and what stands before it in ``tests/unit/test_folders.py``.
"""
