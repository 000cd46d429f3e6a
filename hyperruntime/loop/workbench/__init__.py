"""The tools of every step of a generation: its container, models, log and failures."""
