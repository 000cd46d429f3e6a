"""Containers for other programs: the handlers of the service, which a cluster's nodes use too, and
its HTTP server.

May import ``cluster.rollouts`` and what stands before it in ``tests/unit/test_folders.py``.
"""
