"""Convert scored trajectories to the training data formats of trainers.

May import ``rollout.models`` and what stands before it in ``tests/unit/test_folders.py``.
"""
