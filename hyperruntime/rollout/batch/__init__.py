"""A batch: an agent works on each row of a prompt file; nothing is scored."""
