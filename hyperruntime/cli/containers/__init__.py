"""Commands about containers and images."""
