"""One generation: its steps, what they leave behind, and the seam to the contract of its agent."""
