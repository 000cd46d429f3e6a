"""Rollouts: run agents in leased slots, score them, keep training data. See
docs/decisions/0025-rollouts.md.

May import ``rollout.training_data`` and what stands before it in ``tests/unit/test_folders.py``.
"""
