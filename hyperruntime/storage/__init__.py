"""Crash-safe file writes, and the lock of a run directory.

May import ``host`` and what stands before it in ``tests/unit/test_folders.py``.
"""
