"""Rollouts on nodes: a node makes a trajectory beside its container; only the head writes the files
of the run.

May import ``cluster.generations`` and what stands before it in ``tests/unit/test_folders.py``.
"""
