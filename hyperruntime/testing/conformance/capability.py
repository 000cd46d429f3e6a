"""What a driver declares that it refuses, in the words of checks."""

from __future__ import annotations

from hyperruntime.driver import EngineInfo

OTHER_USERS = "exec.user"


def declares_refusal(info: EngineInfo, need: str) -> bool:
    """Tell whether an engine declares that it refuses something.

    Args:
        info: what it declares.
        need: a field as :class:`~hyperruntime.errors.UnsupportedOptionError` names it, or one of several that a
            field may ask for: ``network.host``, ``network.bridge``, ``exec.user``.
    """
    if need == OTHER_USERS:
        return not info.users
    if need == "gpus":
        return not info.gpus
    family, _, member = need.partition(".")
    if family == "network":
        return member not in info.networks
    return need in info.refuses or (family == "limits" and info.limits.get(member) == "no")


def refused_field(need: str) -> str:
    """Return the field that the refusal must name."""
    return {OTHER_USERS: "user", "network.host": "network", "network.bridge": "network"}.get(need, need)
