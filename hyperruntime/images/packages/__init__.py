"""Python packages for images: requirements files, the wheels that exist, and how this machine
reaches package indexes.

May import ``gpu`` and what stands before it in ``tests/unit/test_folders.py``.
"""
