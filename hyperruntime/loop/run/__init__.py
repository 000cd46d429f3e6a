"""A run from start to end: checks, the loop, evaluation of one generation, export, and import from
HyperAgents.

May import ``loop.hyperagents`` and what stands before it in ``tests/unit/test_folders.py``.
"""
