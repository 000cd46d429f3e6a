"""The values of a pool: configuration, profiles, tool policy, slot, status, result."""
