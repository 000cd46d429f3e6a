"""Container images: recipes, builds, pulls, Containerfiles, definition files and saved archives.

May import ``gpu`` and what stands before it in ``tests/unit/test_folders.py``.
"""
