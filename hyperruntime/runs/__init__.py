"""What all runs have, whatever their items are: directory, lease, journal, resume, and retries."""
