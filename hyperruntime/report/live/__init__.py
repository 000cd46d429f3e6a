"""The page about a run, live: what follows a run's journal, the server of the page, and where it listens.

The run knows nothing of it: everything is read from the files of the run.

May import ``report.page`` and what stands before it in ``tests/unit/test_folders.py``.
"""
