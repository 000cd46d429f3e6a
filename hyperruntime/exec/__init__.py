"""Run commands in a container: sessions, lanes, streams, and killing process trees.

The shell programs that run inside the container are in ``sh/``.

May import ``images`` and what stands before it in ``tests/unit/test_folders.py``.
"""
