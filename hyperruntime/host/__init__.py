"""What the library does on the host itself: processes, their owner and their limits, disk space, caches."""
