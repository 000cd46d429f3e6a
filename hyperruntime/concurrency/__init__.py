"""Threads and event loops: cancellation, one-time events, blocking work, and a parallel map.

May import ``agents`` and what stands before it in ``tests/unit/test_folders.py``.
"""
