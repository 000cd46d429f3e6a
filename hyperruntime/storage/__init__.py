"""Crash-safe file writes, the lock of a run directory, and the file with the token of a service.

May import ``host`` and what stands before it in ``tests/unit/test_folders.py``.
"""
