"""Commands about containers and images.

May import ``cli.machine`` and what stands before it in ``tests/unit/test_folders.py``.
"""
