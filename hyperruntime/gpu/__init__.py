"""Which GPUs a machine has, and which of them a container gets."""
