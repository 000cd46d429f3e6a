"""An upstream's answer: its headers and events, looked through for keys, usage and tokens.

May import ``gateway.request`` and what stands before it in ``tests/unit/test_folders.py``.
"""
