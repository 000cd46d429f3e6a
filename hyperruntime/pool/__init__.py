"""Slots: private workspaces in a pool of containers, leased one at a time. Design: docs/decisions/0023-pool.md.

May import ``pool.tools`` and what stands before it in ``tests/unit/test_folders.py``.
"""
