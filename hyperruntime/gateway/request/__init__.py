"""Read and parse a client's request within limits, or refuse it."""
