"""Build images in containers, a layer for each step."""
