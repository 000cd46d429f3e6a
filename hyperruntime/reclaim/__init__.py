"""Take back what containers wrote on the host: as its owner's own files, and with no special bits.

May import ``storage`` and what stands before it in ``tests/unit/test_folders.py``.
"""
