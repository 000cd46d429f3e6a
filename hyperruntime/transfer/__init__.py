"""Copy trees of files between the host and a container as tar streams that nobody trusts.

May import ``exec.persistent`` and what stands before it in ``tests/unit/test_folders.py``.
"""
