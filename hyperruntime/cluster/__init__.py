"""Many nodes: pilot jobs by Parsl, one node server on each, and its one connection to the head."""
