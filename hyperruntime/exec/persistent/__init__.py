"""Persistent shells: one bash in a container that runs many commands."""
