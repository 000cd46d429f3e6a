"""Rollouts: agent trajectories in leased slots, scored, kept as training data. See docs/decisions/0025-rollouts.md.

May import ``rollout.training_data`` and what stands before it in ``tests/unit/test_folders.py``.
"""
