"""Rollouts on nodes: a node makes a trajectory beside its container; only the head writes the files
of the run.
"""
