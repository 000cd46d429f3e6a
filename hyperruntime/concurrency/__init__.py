"""Threads and event loops: cancellation, an event that happens once, work that blocks, a parallel map.

May import ``agents`` and what stands before it in ``tests/unit/test_folders.py``.
"""
