"""The values of a pool: configuration, profiles, tool policy, slot, status, result.

May import ``git`` and what stands before it in ``tests/unit/test_folders.py``.
"""
