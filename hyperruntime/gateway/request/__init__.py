"""A client's connection and request: read within bounds and parsed, or refused.

May import ``gateway.log`` and what stands before it in ``tests/unit/test_folders.py``.
"""
