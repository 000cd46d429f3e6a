"""The module that the load check requires."""


class MetaAgent:
    """Does nothing; ``run_meta_agent.py`` does the work."""
