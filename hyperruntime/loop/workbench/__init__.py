"""The tools of every step of a generation: its container, models, log and failures.

May import ``loop.run_files`` and what stands before it in ``tests/unit/test_folders.py``.
"""
