"""The interfaces that other programs know, over the one pool of slots. Design: docs/decisions/0029-adapters.md."""
