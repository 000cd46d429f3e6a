"""What an image says about its commands: variables, working directory and user."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import attrs

_MORE = {
    "ExposedPorts": dict,
    "Healthcheck": dict,
    "Labels": dict,
    "OnBuild": list,
    "Shell": list,
    "StopSignal": str,
    "Volumes": dict,
}
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@attrs.frozen(kw_only=True)
class ImageConfig:
    """What an image says about its commands.

    Attributes:
        env: variables.
        workdir: working directory.
        user: user, or "" for root.
        entrypoint: argv that comes before a command where that is asked for.
        cmd: the default command.
        more: what else the OCI configuration has, such as ``Labels``.
    """

    env: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    more: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @classmethod
    def from_oci(cls, raw: object) -> ImageConfig:
        """Read the ``config`` of an OCI image configuration; values of a wrong type are left out.

        Source: OCI image specification 1.1, "OCI Image Configuration".
        """
        known: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
        pairs = (one.partition("=") for one in _texts(known.get("Env")))
        workdir = known.get("WorkingDir")
        user = known.get("User")
        return cls(
            env={name: value for name, _, value in pairs if name},
            workdir=workdir if isinstance(workdir, str) and workdir.startswith("/") else "/",
            user=user if isinstance(user, str) else "",
            entrypoint=_texts(known.get("Entrypoint")),
            cmd=_texts(known.get("Cmd")),
            more={
                name: list(_texts(known[name])) if kind is list else known[name]
                for name, kind in _MORE.items()
                if known.get(name) and isinstance(known[name], kind)
            },
        )

    @property
    def program(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The entry point and the default command."""
        return self.entrypoint, self.cmd

    def to_oci(self) -> dict[str, Any]:
        """Return the ``config`` of an OCI image configuration."""
        known = {
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "WorkingDir": self.workdir,
            "User": self.user,
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.cmd),
            **self.more,
        }
        return {name: value for name, value in known.items() if value}

    def to_script(self) -> str:
        """Return the shell script by which Apptainer sets the variables of an image.

        As in a conversion by Apptainer, the image sets PATH, and gives the others only where they
        are not set. Names that a shell cannot set are left out.
        """
        lines = ["#!/bin/sh"]
        for name, value in self.env.items():
            if _SHELL_NAME.fullmatch(name):
                keeps = "" if name == "PATH" else f'[ -n "${{{name}:-}}" ] || '
                lines.append(f"{keeps}export {name}={shlex.quote(value)}")
        return "\n".join([*lines, ""])


def _texts(value: object) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else ()
    return tuple(one for one in texts if isinstance(one, str) and "\0" not in one)
