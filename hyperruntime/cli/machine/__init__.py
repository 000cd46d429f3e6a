"""Commands about this machine: engines, doctor, selfcheck.

May import ``cli`` and what stands before it in ``tests/unit/test_folders.py``.
"""
