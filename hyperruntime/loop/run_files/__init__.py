"""The files of a run: their paths, their contents and how to read them back.

The options of the run are one of these files.

May import ``trainers`` and what stands before it in ``tests/unit/test_folders.py``.
"""
