"""What is never shown: keys in all their spellings, and texts and values without them.

``redact`` searches for known keys; ``known`` knows those of this process, by the names of
variables; ``values`` also by their places, for bug reports; ``env_file`` reads ``.env`` files. The
gateway, reports and logs remove secrets with these too.
"""
