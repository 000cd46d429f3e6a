"""Ask an agent for its answers inside a container, and score them on the host."""
