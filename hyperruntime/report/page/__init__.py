"""One file of HTML about a run: what its files say, and the page that shows it without a network.

May import ``report`` and what stands before it in ``tests/unit/test_folders.py``.
"""
