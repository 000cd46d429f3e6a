"""Find the GPUs of a machine, and select those of a container.

May import ``reclaim`` and what stands before it in ``tests/unit/test_folders.py``.
"""
