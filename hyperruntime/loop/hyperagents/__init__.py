"""Agent repositories of the HyperAgents layout: their commands, domains, reports and ensembles.

May import ``loop.generation`` and what stands before it in ``tests/unit/test_folders.py``.
"""
