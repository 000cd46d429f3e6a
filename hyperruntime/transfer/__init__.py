"""Copy trees of files between the host and a container as tar streams that nobody trusts."""
