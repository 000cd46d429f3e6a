"""The files of a run: where they are, what each holds, and how they are read back.

What users ask of a run is one of them.

May import ``pool`` and what stands before it in ``tests/unit/test_folders.py``.
"""
