"""What all kinds of runs have: directory, lease, journal, resume, and retries."""
