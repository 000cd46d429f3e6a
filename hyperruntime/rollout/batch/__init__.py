"""A batch: an agent works on each row of a file of prompts once, and nothing is scored."""
