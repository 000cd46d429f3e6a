"""Git on the host: the store of states, worktrees, patches, and which changes a patch may hold.

May import ``transfer`` and what stands before it in ``tests/unit/test_folders.py``.
"""
