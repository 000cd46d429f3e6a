"""What the library does on the host itself: processes, their owner and their limits, disk space, caches.

May import ``concurrency`` and what stands before it in ``tests/unit/test_folders.py``.
"""
