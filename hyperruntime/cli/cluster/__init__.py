"""Commands about clusters.

May import ``cli.rollout`` and what stands before it in ``tests/unit/test_folders.py``.
"""
