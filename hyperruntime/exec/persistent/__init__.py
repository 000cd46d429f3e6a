"""A bash of a container that lasts from one command to the next."""
