"""Reclaim files that containers wrote on the host: give them to their owner, and remove special
mode bits.
"""
