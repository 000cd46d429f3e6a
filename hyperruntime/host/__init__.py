"""The host: processes, their owner and limits, watchdogs, disk space and caches.

May import ``agents`` and what stands before it in ``tests/unit/test_folders.py``.
"""
