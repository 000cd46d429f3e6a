"""Copy file trees between the host and a container as untrusted tar streams.

May import ``exec.spawn`` and what stands before it in ``tests/unit/test_folders.py``.
"""
