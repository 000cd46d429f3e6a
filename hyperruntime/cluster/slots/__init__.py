"""Slots on nodes: a pool on each node, and one pool over all of them.

May import ``cluster`` and what stands before it in ``tests/unit/test_folders.py``.
"""
