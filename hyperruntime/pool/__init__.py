"""Slots: private workspaces in a pool of containers, leased one at a time. Design: docs/decisions/0023-pool.md."""
