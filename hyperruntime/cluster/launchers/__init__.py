"""What starts the jobs of nodes: batch systems, and processes of this machine."""
