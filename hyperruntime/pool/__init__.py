"""A pool of containers with slots: private workspaces that are leased. Design:
docs/decisions/0023-pool.md.

May import ``pool.tools`` and what stands before it in ``tests/unit/test_folders.py``.
"""
