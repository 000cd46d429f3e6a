"""A bash of a container that lasts from one command to the next.

May import ``exec`` and what stands before it in ``tests/unit/test_folders.py``.
"""
