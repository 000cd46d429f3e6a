"""Run an agent's tasks in a container and score the answers on the host."""
