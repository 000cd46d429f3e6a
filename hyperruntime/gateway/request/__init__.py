"""Read and parse a client's request within limits, or refuse it.

May import ``gateway.log`` and what stands before it in ``tests/unit/test_folders.py``.
"""
