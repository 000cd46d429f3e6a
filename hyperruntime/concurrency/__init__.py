"""Threads and event loops: cancellation, an event that happens once, work that blocks, a parallel map."""
