"""What every step of a generation works with: its container, models, log and failures.

May import ``loop.run_files`` and what stands before it in ``tests/unit/test_folders.py``.
"""
