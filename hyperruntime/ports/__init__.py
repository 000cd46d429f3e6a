"""Ports of containers without a network: a forwarder inside, and a socket in the exchange
directory; listening sockets.
"""
