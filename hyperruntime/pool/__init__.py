"""A pool of containers with slots: private workspaces that are leased. Design:
docs/design/pool.md#slots.
"""
