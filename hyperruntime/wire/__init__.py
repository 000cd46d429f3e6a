"""What both ends of a connection share: tokens, messages, and JSON values with the types of
classes.

May import ``concurrency`` and what stands before it in ``tests/unit/test_folders.py``.
"""
