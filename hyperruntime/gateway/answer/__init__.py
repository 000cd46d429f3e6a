"""Screen an upstream's answer: headers and events, for keys, usage and tokens.

May import ``gateway.request`` and what stands before it in ``tests/unit/test_folders.py``.
"""
