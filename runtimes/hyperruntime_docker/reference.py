"""Convert image references to Docker's form: pure. Source: distribution/reference, "familiar" names."""

from __future__ import annotations

import re

from hyperruntime.images.pull_errors import with_tag

_IDENTIFIER = re.compile(r"(sha256:)?[0-9a-f]{64}")


def is_identifier(reference: str) -> bool:
    """Return whether a reference is the full identifier of an image."""
    return _IDENTIFIER.fullmatch(reference) is not None


def familiar(reference: str) -> str:
    """Return a reference as the daemon lists it: with a tag, and Docker Hub's names without their registry."""
    for registry in ("docker.io/", "index.docker.io/"):
        if reference.startswith(registry):
            reference = reference.removeprefix(registry).removeprefix("library/")
    return reference if is_identifier(reference) else with_tag(reference)


def split(reference: str) -> tuple[str, str]:
    """Return a reference's repository, and its tag or digest."""
    full = familiar(reference)
    separator = "@" if "@" in full else ":"
    repository, _, tag = full.rpartition(separator)
    return repository, tag
