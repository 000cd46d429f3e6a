"""Crash-safe file writes, the lock of a run directory, and the file with the token of a service."""
