"""Loggers: a run's figures in other programs, such as trackio, from a process beside the run."""
