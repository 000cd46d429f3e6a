"""What the load check wants to find."""


class MetaAgent:
    """Does nothing: the program beside it does all."""
