"""Many nodes: pilot jobs by Parsl, one node server on each, and its one connection to the head.

May import ``loop`` and what stands before it in ``tests/unit/test_folders.py``.
"""
