"""Git on the host: the store of repository states, worktrees, patches, and the rules for their
changes.
"""
