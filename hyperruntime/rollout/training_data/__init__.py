"""Training data made of scored trajectories, in each form that trainers read.

May import ``rollout.models`` and what stands before it in ``tests/unit/test_folders.py``.
"""
