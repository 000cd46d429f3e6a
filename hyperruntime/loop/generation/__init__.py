"""One generation: its steps, its files, and the interface to the contract of its agent.

May import ``loop.evaluation`` and what stands before it in ``tests/unit/test_folders.py``.
"""
