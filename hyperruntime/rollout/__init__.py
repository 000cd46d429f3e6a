"""Rollouts: agent trajectories in leased slots, scored, kept as training data. See docs/decisions/0025-rollouts.md."""
