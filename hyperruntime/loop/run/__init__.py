"""A run from its start to its end: checks before anything is made, the loop, evaluation of one generation, export."""
