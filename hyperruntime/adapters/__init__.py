"""Sandbox interfaces of other programs, on top of our slot pools. Design:
docs/design/pool.md#other-programs-interfaces.
"""
