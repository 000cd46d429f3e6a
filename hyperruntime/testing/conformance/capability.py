"""Read from a driver's declaration whether it refuses a feature that a check needs."""

from __future__ import annotations

from hyperruntime.driver import EngineInfo

OTHER_USERS = "exec.user"


def declares_refusal(info: EngineInfo, need: str) -> bool:
    """Return whether an engine declares that it refuses a feature.

    Args:
        info: the engine's declaration.
        need: a field, as in :class:`~hyperruntime.errors.UnsupportedOptionError`, or one value of a
            field: ``network.host``, ``network.bridge``, ``exec.user``; or ``seccomp``, which no
                spec asks for: the check
            raises the reason that the driver declares.
    """
    if need == OTHER_USERS:
        return not info.users
    if need == "gpus":
        return not info.gpus
    if need == "seccomp":
        return bool(info.unfiltered)
    family, _, member = need.partition(".")
    if family == "network":
        return member not in info.networks
    return need in info.refuses or (family == "limits" and info.limits.get(member) == "no")


def refused_field(need: str) -> str:
    """Return the field that the refusal of a feature must name."""
    return {OTHER_USERS: "user", "network.host": "network", "network.bridge": "network"}.get(
        need, need
    )
