"""Ports of containers without a network: a forwarder inside, and a socket in the exchange
directory; listening sockets.

May import ``transfer`` and what stands before it in ``tests/unit/test_folders.py``.
"""
