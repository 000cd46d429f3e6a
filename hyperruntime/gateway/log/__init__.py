"""What is written down of each exchange: what it used, without any key."""
