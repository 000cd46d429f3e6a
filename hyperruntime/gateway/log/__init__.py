"""Record each exchange: its usage against the budgets, and its log entry without keys.

May import ``secrets`` and what stands before it in ``tests/unit/test_folders.py``.
"""
