"""Files that survive a kill at any instant, and the lock of a run directory."""
