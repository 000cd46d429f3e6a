"""Agent repositories, and runs, of the HyperAgents layout."""
