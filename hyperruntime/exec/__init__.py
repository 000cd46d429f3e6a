"""Run commands in a container: sessions, lanes, streams, and the end of process trees.

The shell programs that run inside are in ``sh/``.
"""
