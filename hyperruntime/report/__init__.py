"""A run's pictures: lineage, progress, and what its best generation answered.

May import ``rollout.batch`` and what stands before it in ``tests/unit/test_folders.py``.
"""
