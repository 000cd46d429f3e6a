"""The files of a run of rollouts: trajectories and groups, one JSON line each.

May import ``loop`` and what stands before it in ``tests/unit/test_folders.py``.
"""
