"""Threads and event loops: cancellation, one-time events, blocking work, a parallel map; objects
that close themselves.
"""
