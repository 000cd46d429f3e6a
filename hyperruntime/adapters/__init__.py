"""Sandbox interfaces of other programs, on top of our slot pools. Design:
docs/decisions/0029-adapters.md.

May import ``report.live`` and what stands before it in ``tests/unit/test_folders.py``.
"""
