"""Commands about rollouts.

May import ``cli.loop`` and what stands before it in ``tests/unit/test_folders.py``.
"""
