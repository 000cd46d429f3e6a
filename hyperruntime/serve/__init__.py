"""Containers for other programs: the handlers of the service, and its HTTP server."""
