"""A pool of containers with slots: private workspaces that are leased. Design:
docs/design/pool.md#slots.

May import ``pool.tools`` and what stands before it in ``tests/unit/test_folders.py``.
"""
