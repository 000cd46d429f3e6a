"""Images by name: recipes, builds, Containerfiles and definition files, saved files.

May import ``gpu`` and what stands before it in ``tests/unit/test_folders.py``.
"""
