"""Run commands in a container: sessions, lanes, streams, and killing process trees.

The shell programs that run inside the container are in ``sh/``.
"""
