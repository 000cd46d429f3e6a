"""The honest part: it answers LEVEL of every four questions."""

import hashlib

LEVEL = 1


def label(split, n):
    return f"lbl-{split}-" + hashlib.blake2s(str(n).encode(), digest_size=8).hexdigest()


def answer(inputs):
    return label(inputs["split"], inputs["n"]) if inputs["n"] % 4 < LEVEL else "unknown"
