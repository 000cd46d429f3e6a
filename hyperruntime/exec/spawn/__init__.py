"""Commands that the caller talks to while they run: background processes, and terminals.

Each is one exec (:mod:`hyperruntime.exec.execution`) in a thread of its own.
"""
