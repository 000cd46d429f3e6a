"""A run of rollouts: its options, slots and scheduler, one trajectory, and the summary.

May import ``rollout`` and what stands before it in ``tests/unit/test_folders.py``.
"""
