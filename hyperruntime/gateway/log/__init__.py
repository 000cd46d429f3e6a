"""What is written down of each exchange: what it used, without any key.

May import ``gateway.config`` and what stands before it in ``tests/unit/test_folders.py``.
"""
