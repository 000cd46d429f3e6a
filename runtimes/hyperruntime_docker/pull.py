"""Tell a failed pull's reasons apart: pure, from the daemon's words, which are all it gives."""

from __future__ import annotations

import re

from hyperruntime.errors import ImageLoginError, ImagePullError, ImageUnknownError, RegistryUnreachableError
from hyperruntime_docker.reference import registry_of

_UNKNOWN = re.compile(r"manifest unknown|manifest for .* not found|name unknown|repository .* not found", re.IGNORECASE)
_LOGIN = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|access .*denied|incorrect username|forbidden",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"connection refused|no such host|i/o timeout|no route to host|network is unreachable|TLS handshake|x509|"
    r"server gave HTTP response to HTTPS client|deadline exceeded|Client.Timeout|temporary failure|server misbehaving|"
    r"connection reset|\bEOF\b|proxyconnect",
    re.IGNORECASE,
)


def pull_error(reference: str, text: str) -> ImagePullError:
    """Return the error for what the daemon said when an image was not pulled."""
    registry, said = registry_of(reference), " ".join(text.split())
    if _UNREACHABLE.search(said):
        return RegistryUnreachableError(
            reference, f"registry {registry} cannot be reached: {said}", "check its name, the network and proxies"
        )
    if _UNKNOWN.search(said) and not re.search(r"may require|denied", said):
        return ImageUnknownError(
            reference, f"registry {registry} has no such image or tag: {said}", "check the name and the tag"
        )
    if _LOGIN.search(said):
        return ImageLoginError(
            reference,
            f"registry {registry} refused: {said}",
            f"log in with `docker login {registry}`, or check the name (private and missing images look alike)",
        )
    return ImagePullError(reference, said, "see the daemon's log")
