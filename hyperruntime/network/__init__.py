"""Which network a container has: values of a spec; the proxy of a list is in ``egress/``."""
