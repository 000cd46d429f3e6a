"""What every engine's pull has in common: which registry is asked and how, and what a failure means. Pure.

All engines hand on the words of the same two registry clients, so one table tells them apart.
"""

from __future__ import annotations

import re

from hyperruntime.errors import ImageLoginError, ImagePullError, ImageUnknownError, RegistryUnreachableError

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
_SHORT_NAME = re.compile(r"short-name .* did not resolve|no unqualified-search registries")


def registry_of(reference: str) -> str:
    """Return the registry that a reference names; without one it is Docker Hub."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def is_loopback(reference: str) -> bool:
    """Tell whether a reference's registry is on this machine, where plain HTTP is allowed."""
    return _LOOPBACK.fullmatch(registry_of(reference)) is not None


def is_local(reference: str) -> bool:
    """Tell whether a reference is the name of what was built here: ``localhost/...``, which no registry serves."""
    return reference.startswith("localhost/")


def explain_pull(reference: str, output: str, login: str, scheme: str = "") -> ImagePullError:
    """Return the error that says why an image did not come.

    Args:
        reference: what was asked for.
        output: what the engine wrote; its last line that is no retry says why.
        login: the command that logs in at a registry, such as ``podman login``.
        scheme: what that command wants before the registry's name.
    """
    registry, why = registry_of(reference), _reason(output)
    if _PLAIN_HTTP.search(why):
        said = f"registry {registry} speaks plain HTTP, which is allowed on this machine's own addresses only"
        return RegistryUnreachableError(reference, said, "give it a certificate, or reach it through a loopback port")
    if _UNREACHABLE.search(why):
        said = f"registry {registry} cannot be reached: {why}"
        step = "check its name, the network and the proxy variables, or bring an archive and use `hyperrun image load`"
        return RegistryUnreachableError(reference, said, step)
    if _LOGIN.search(why):
        step = f"log in with `{login} {scheme}{registry}`, or check the name (private and missing images look alike)"
        return ImageLoginError(reference, f"registry {registry} refused the login: {why}", step)
    if _UNKNOWN.search(why):
        said = f"registry {registry} has no such image or tag: {why}"
        return ImageUnknownError(reference, said, "check the name and the tag")
    if _SHORT_NAME.search(why):
        return ImageUnknownError(reference, "it names no registry", f"name one, as in docker.io/library/{reference}")
    return ImagePullError(reference, why, "see the lines above it")


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not _RETRY.search(line)]
    return re.sub(r"^(Error|FATAL):\s+", "", lines[-1]) if lines else "no message"
