"""Git on the host: the store of states, worktrees, patches, and which changes a patch may hold."""
