"""Slots inside a container: their users and directories, and how they are kept apart and made new."""
