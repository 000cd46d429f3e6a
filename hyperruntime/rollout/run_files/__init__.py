"""The files of a rollout run: trajectories and groups, one JSON line each.

May import ``pool`` and what stands before it in ``tests/unit/test_folders.py``.
"""
