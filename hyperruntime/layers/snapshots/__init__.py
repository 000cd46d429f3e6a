"""Snapshots: the files of containers, kept for others."""
