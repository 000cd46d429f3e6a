"""The host: processes, their owner and limits, watchdogs, disk space and caches."""
