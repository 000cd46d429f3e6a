"""Git on the host: the store of repository states, worktrees, patches, and the rules for their
changes.

May import ``ports`` and what stands before it in ``tests/unit/test_folders.py``.
"""
