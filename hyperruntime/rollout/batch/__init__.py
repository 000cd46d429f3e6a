"""A batch: an agent works on each row of a file of prompts once, and nothing is scored.

May import ``rollout.run`` and what stands before it in ``tests/unit/test_folders.py``.
"""
