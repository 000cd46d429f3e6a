"""Threads and event loops: cancellation, one-time events, blocking work, a parallel map; objects
that close themselves.

May import ``logs`` and what stands before it in ``tests/unit/test_folders.py``.
"""
