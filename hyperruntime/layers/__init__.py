"""Images as unpacked trees: one store for all drivers that start a container from a directory."""
