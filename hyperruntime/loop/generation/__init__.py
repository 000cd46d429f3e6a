"""One generation: its steps, its files, and the interface to the contract of its agent."""
