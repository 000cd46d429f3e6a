"""Services: containers that share the network of another one, and nothing else.

``group.py`` starts and ends them, and ``readiness.py`` waits until they are ready.
Design: docs/design/containers.md#services.
"""
