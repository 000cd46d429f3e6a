"""Parse image references, and classify the output of a failed pull.

All engines report the messages of the same two registry clients, so one table serves them all.
"""

from __future__ import annotations

import re

from hyperruntime.errors import (
    ImageLoginError,
    ImagePullError,
    ImageUnknownError,
    RegistryUnreachableError,
)

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
_RETRY = re.compile(r"\blevel=warning\b|Failed, retrying")
_PLAIN_HTTP = re.compile(r"server gave HTTP response to HTTPS client")
_UNREACHABLE = re.compile(
    r"connection refused|no such host|i/o timeout|no route to host|unreachable|TLS handshake|x509|deadline exceeded|"
    r"Client\.Timeout|temporary failure|server misbehaving|connection reset|\bEOF\b|proxyconnect|dial tcp|"
    r"\b50[234]\b|service unavailable|bad gateway",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r"manifest[ _]unknown|manifest for .* not found|name[ _]unknown|repository .* not found|404 \(Not Found\)|"
    r"name not known to registry",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|access .*denied|denied:|forbidden|"
    r"invalid username/password|incorrect username",
    re.IGNORECASE,
)
SHORT_NAME = re.compile(r"short-name .* did not resolve|no unqualified-search registries")


def registry_of(reference: str) -> str:
    """Return the registry of a reference; Docker Hub if it names none."""
    return reference.partition("/")[0] if names_registry(reference) else "docker.io"


def names_registry(reference: str) -> bool:
    """Return whether a reference names its registry."""
    first, slash, _ = reference.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def full_name(reference: str, registry: str) -> str:
    """Return a reference with its registry: this one if it names none.

    Source: distribution/reference; on Docker Hub, names without a slash are in ``library/``.
    """
    if names_registry(reference):
        return reference
    library = "library/" if registry == "docker.io" and "/" not in reference else ""
    return f"{registry}/{library}{reference}"


def is_loopback(reference: str) -> bool:
    """Return whether a reference's registry is on this machine's loopback, where plain HTTP is
    allowed.
    """
    return _LOOPBACK.fullmatch(registry_of(reference)) is not None


def with_tag(reference: str) -> str:
    """Return a reference with its tag: ``latest`` if it has neither tag nor digest."""
    name = reference.rpartition("/")[2]
    return reference if ":" in name or "@" in name else f"{reference}:latest"


def is_local(reference: str) -> bool:
    """Return whether a reference names a locally built image: ``localhost/...``, which no registry
    serves.
    """
    return reference.startswith("localhost/")


def explain_pull(reference: str, output: str, login: str, scheme: str = "") -> ImagePullError:
    """Return the error for a failed pull.

    Args:
        reference: the image.
        output: output of the engine; its last line that does not report a retry is the reason.
        login: command that logs in at a registry, such as ``podman login``.
        scheme: prefix of the registry in that command, such as ``docker://``.
    """
    registry = registry_of(reference)
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and not _RETRY.search(line)
    ]
    why = re.sub(r"^(Error|FATAL):\s+", "", lines[-1]) if lines else "no message"
    if _PLAIN_HTTP.search(why):
        said = (
            f"registry {registry} uses plain HTTP, which is allowed only on loopback addresses "
            "of this machine"
        )
        return RegistryUnreachableError(
            reference, said, "give it a certificate, or forward a loopback port to it"
        )
    if _UNREACHABLE.search(why):
        said = f"registry {registry} cannot be reached: {why}"
        step = (
            "check its name, the network and the proxy variables, or load an archive with "
            "`hyperrun image load`"
        )
        return RegistryUnreachableError(reference, said, step)
    if _LOGIN.search(why):
        step = (
            f"log in with `{login} {scheme}{registry}`, or check the name (private and missing "
            "images look alike)"
        )
        return ImageLoginError(reference, f"registry {registry} refused the login: {why}", step)
    if _UNKNOWN.search(why):
        said = f"registry {registry} has no such image or tag: {why}"
        return ImageUnknownError(reference, said, "check the name and the tag")
    if SHORT_NAME.search(why):
        return ImageUnknownError(
            reference,
            "it names no registry",
            f"name one, as in {full_name(reference, 'docker.io')}",
        )
    return ImagePullError(reference, why, "see the engine's output above")
