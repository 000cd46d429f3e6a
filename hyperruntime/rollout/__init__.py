"""Rollouts: run agents in leased slots, score them, keep training data. See
docs/design/rollouts.md.
"""
