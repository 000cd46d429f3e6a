"""Sandbox interfaces of other programs, on top of our slot pools. Design:
docs/design/pool.md#other-programs-interfaces.

May import ``report.live`` and what stands before it in ``tests/unit/test_folders.py``.
"""
