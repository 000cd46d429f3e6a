"""Find the GPUs of a machine, and select those of a container."""
