"""A client's connection and request: read within bounds and parsed, or refused."""
