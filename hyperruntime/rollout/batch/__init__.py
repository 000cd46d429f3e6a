"""A batch: an agent works on each row of a prompt file; nothing is scored.

May import ``rollout.run`` and what stands before it in ``tests/unit/test_folders.py``.
"""
