"""What a gateway is configured with, and where a configuration comes from.

May import ``runtime`` and what stands before it in ``tests/unit/test_folders.py``.
"""
