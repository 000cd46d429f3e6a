"""A rollout run: options, slots, scheduler, episodes (one trajectory each) and summary.

May import ``rollout`` and what stands before it in ``tests/unit/test_folders.py``.
"""
