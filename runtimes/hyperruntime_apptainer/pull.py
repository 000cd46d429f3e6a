"""Pull images from registries: the argv and what Apptainer's words mean; pure, no I/O."""

from __future__ import annotations

import re

from hyperruntime.errors import ImageError
from hyperruntime_apptainer.sif import BUILD
from hyperruntime_apptainer.store import with_tag

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


def pull_args(reference: str, sif: str) -> list[str]:
    """Return the argv that fetches a reference as a SIF; plain HTTP is allowed for this machine's own registry."""
    plain = ["--no-https"] if is_loopback(reference) else []
    return [*(word for word in BUILD if word != "--silent"), *plain, sif, f"docker://{with_tag(reference)}"]


def is_loopback(reference: str) -> bool:
    """Tell whether a reference names a registry on this machine."""
    host, slash, _ = reference.partition("/")
    return bool(slash) and _LOOPBACK.fullmatch(host) is not None


def explain_pull(reference: str, output: str) -> ImageError:
    """Return the error that says why a pull failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = re.sub(r"^\w+:\s+", "", lines[-1]) if lines else "no message"
    registry = reference.partition("/")[0]
    if re.search(r"manifest unknown|MANIFEST_UNKNOWN|NAME_UNKNOWN|name unknown|not found", output):
        return ImageError(f"{reference!r} cannot be pulled: {registry} has no such image or tag; check both")
    if re.search(r"unauthorized|UNAUTHORIZED|authentication required|denied|invalid username/password", output, re.I):
        step = f"log in with `apptainer registry login docker://{registry}`, or check the name"
        return ImageError(f"{reference!r} cannot be pulled: {registry} refuses the login; {step}")
    if re.search(r"connection refused|no such host|i/o timeout|unreachable|dial tcp|deadline exceeded", output):
        return ImageError(
            f"{reference!r} cannot be pulled: {registry} cannot be reached ({text}); check the network, or load an "
            "archive with `hyperrun image load`"
        )
    if "server gave HTTP response to HTTPS client" in output:
        why = f"{registry} speaks plain HTTP, which is allowed for this machine's own registry only"
        return ImageError(f"{reference!r} cannot be pulled: {why}")
    return ImageError(f"{reference!r} cannot be pulled: {text}")
