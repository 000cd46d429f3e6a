"""Files that survive a kill at any instant, and the lock of a run directory.

May import ``host`` and what stands before it in ``tests/unit/test_folders.py``.
"""
