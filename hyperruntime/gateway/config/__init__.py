"""The gateway's configuration: its values, and the sources it is loaded from.

May import ``runtime`` and what stands before it in ``tests/unit/test_folders.py``.
"""
