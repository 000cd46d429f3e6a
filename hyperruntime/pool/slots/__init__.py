"""Slots inside a container: their users and directories, their isolation and their reset."""
