"""Which texts name images: the one rule for references, which engines must read as nothing else."""

from __future__ import annotations

import re

from hyperruntime.errors import SpecError

# Source: the grammar of references in the OCI distribution specification and in
# github.com/distribution/reference.
_HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_DIGEST = r"sha256:[0-9a-f]{64}"
_IMAGE_NAME = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@{_DIGEST})?")
# Podman reads what begins with one of these from other places; containers-transports(5).
_TRANSPORTS = "containers-storage dir docker docker-archive docker-daemon oci oci-archive ostree sif tarball".split()
_IMAGE_FILES = (".sif", ".sqfs")
_IMAGE_PATH = re.compile(r"[\w./][\w ._:/@+-]*")
# the repositories of Podman's and Docker's snapshots; the user's number follows the second
UNNAMED_SNAPSHOTS = "localhost/hyperruntime-snapshot"
NAMED_SNAPSHOTS = "localhost/hyperruntime-named"


def is_image_name(reference: str) -> bool:
    """Return whether every engine reads a reference as the name of an image, never as a path or a
    transport.
    """
    is_name = _IMAGE_NAME.fullmatch(reference) is not None and not has_transport(reference)
    return is_name and not reference.endswith(_IMAGE_FILES)


def has_transport(reference: str) -> bool:
    """Return whether an engine may read a reference from elsewhere than its store and
    registries.
    """
    return reference.partition(":")[0] in _TRANSPORTS


def is_image_path(reference: str) -> bool:
    """Return whether a reference is the path of an image file or a directory, which only some
    engines can run.
    """
    return reference.startswith(("/", "./", "../")) or (
        reference.endswith(_IMAGE_FILES) and ":" not in reference
    )


def check_image(field: str, reference: object) -> None:
    """Check that a value names an image, or is the path of one; the one rule for references of
    images.

    A transport such as ``docker-archive:FILE`` would make an engine read any file of this machine.

    Args:
        field: name of the field, for the message.
        reference: the value.

    Raises:
        SpecError: it is neither.
    """
    text = str(reference)
    if not (is_image_name(text) or (is_image_path(text) and _IMAGE_PATH.fullmatch(text))):
        allowed = (
            "an image reference such as localhost/name:tag; load an archive first with "
            "`hyperrun image load FILE`"
        )
        raise SpecError(field, reference, allowed)


def check_new_image(field: str, reference: object) -> None:
    """Check that an image may get a name: those of snapshots are given by snapshots alone.

    Raises:
        SpecError: it may not.
    """
    check_image(field, reference)
    if is_of_snapshots(str(reference)):
        raise SpecError(field, reference, "snapshots have such names; use another repository")


def is_of_snapshots(reference: str) -> bool:
    """Return whether a reference is in a repository of snapshots; Podman puts ``localhost/`` before
    a name without a registry.
    """
    full = f"localhost/{reference.removeprefix('localhost/')}"
    repository = re.split("[:@]", full, maxsplit=1)[0]
    return f"{repository}/".startswith((f"{UNNAMED_SNAPSHOTS}/", f"{NAMED_SNAPSHOTS}/"))
