"""A run of rollouts: its options, slots and scheduler, one trajectory, and the summary."""
