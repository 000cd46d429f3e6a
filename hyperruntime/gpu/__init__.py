"""Which GPUs a machine has, and which of them a container gets.

May import ``reclaim`` and what stands before it in ``tests/unit/test_folders.py``.
"""
