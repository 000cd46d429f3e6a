"""A sandbox that is reached from elsewhere: what is asked, who answers, and the sandbox at the
caller.

``requests`` are the typed requests, ``handlers`` is the table that answers them over any sandbox,
and ``sandbox`` is the sandbox of a caller that asks by calls of a peer. Nodes and the HTTP service
use the same table.
"""
