"""Container images: recipes, builds, pulls, Containerfiles, definition files and saved archives.

May import ``images.packages`` and what stands before it in ``tests/unit/test_folders.py``.
"""
