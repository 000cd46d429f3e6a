"""Benchmarks of our integrations beside the frameworks' own Docker sandboxes
(`make bench-frameworks`).

Each module has the contest of one framework, and runs in the environment of its integration.
"""
