"""A rollout run: options, slots, scheduler, episodes (one trajectory each) and summary."""
