"""The network with a list: a proxy for each container, on this machine, and the way to it."""
