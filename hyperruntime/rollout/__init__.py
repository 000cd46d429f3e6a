"""Rollouts: run agents in leased slots, score them, keep training data. See
docs/design/rollouts.md.

May import ``rollout.training_data`` and what stands before it in ``tests/unit/test_folders.py``.
"""
