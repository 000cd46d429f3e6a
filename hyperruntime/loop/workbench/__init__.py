"""What every step of a generation works with: its container, models, log and failures."""
