"""Commands about rollouts."""
