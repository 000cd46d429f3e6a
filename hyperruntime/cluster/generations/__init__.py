"""Generations on nodes: the executor on the head, the service on a node, and the way to the head's
models.
"""
