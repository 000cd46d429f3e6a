"""What is checked on a machine with a GPU; `scripts/gpu` runs it."""
