"""A run from start to end: checks, the loop, evaluation of one generation, export, and import from
HyperAgents.
"""
