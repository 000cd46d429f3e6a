"""The interfaces that other programs know, over the one pool of slots. Design: docs/decisions/0029-adapters.md.

May import ``trainers`` and what stands before it in ``tests/unit/test_folders.py``.
"""
