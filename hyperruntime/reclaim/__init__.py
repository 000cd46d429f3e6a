"""Reclaim files that containers wrote on the host: give them to their owner, and remove special
mode bits.

May import ``storage`` and what stands before it in ``tests/unit/test_folders.py``.
"""
