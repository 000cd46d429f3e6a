"""Commands about runs of the generate loop.

May import ``cli.containers`` and what stands before it in ``tests/unit/test_folders.py``.
"""
