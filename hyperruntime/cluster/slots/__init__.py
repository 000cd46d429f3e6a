"""Slots on nodes: a pool on each node, and one pool over all of them."""
