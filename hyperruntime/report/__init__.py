"""Draw a run: its lineage, its progress, and the answers of its best generation.

May import ``cluster.slots`` and what stands before it in ``tests/unit/test_folders.py``.
"""
