"""A run from its start to its end: checks before anything is made, the loop, evaluation of one generation, export.

May import ``loop.hyperagents`` and what stands before it in ``tests/unit/test_folders.py``.
"""
