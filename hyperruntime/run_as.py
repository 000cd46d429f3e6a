"""Another user of a container, by number, through the container's own supervisor.

Design: docs/decisions/0022-users-and-shells.md.
"""

from __future__ import annotations

from typing import Any

import attrs

from hyperruntime.errors import SpecError

_MAX_ID = 2**31 - 1  # what engines take
_LEAST_PIDS = 4  # a lane, an exec, and what the two need for a moment


def _id(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_ID:
        raise SpecError(f"RunAs.{attribute.name}", value, f"a number from 1 to {_MAX_ID}: never root")


def _pids(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < _LEAST_PIDS):
        raise SpecError(f"RunAs.{attribute.name}", value, f"a whole number of at least {_LEAST_PIDS}, or None")


def _mask(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 0o777:
        raise SpecError(f"RunAs.{attribute.name}", value, "a file mode mask such as 0o077")


@attrs.frozen(kw_only=True)
class RunAs:
    """An ordinary user that needs no name in the image; its commands hold no capability and cannot reach another's.

    Their ``HOME`` is ``/`` unless the command's own environment says otherwise.

    Attributes:
        uid: user id inside the container; where the engine maps ids, one of those that it maps (below 65,536).
        gid: group id; default is ``uid``. There are no other groups.
        pids: processes and threads that this uid may have, two for each command that runs at once included; None is no
            limit of its own. Linux counts them in all containers of a user namespace together, so with a rootful
            engine a uid should be used in one container only.
        umask: of its commands.
    """

    uid: int = attrs.field(validator=_id)
    gid: int = attrs.field(default=attrs.Factory(lambda self: self.uid, takes_self=True), validator=_id)
    pids: int | None = attrs.field(default=None, validator=_pids)
    umask: int = attrs.field(default=0o077, validator=_mask)

    def prologue(self) -> bytes:
        """Return what a shell that runs as this user sources before its first command."""
        lines = [f"umask {self.umask:04o}", "HOME=/", "export HOME"]
        if self.pids is not None:
            lines.append(f"ulimit -u {self.pids} 2>/dev/null || ulimit -p {self.pids} 2>/dev/null")  # dash's is -p
        return "\n".join((*lines, "")).encode()

    def __str__(self) -> str:
        """Return it as engines take a user."""
        return f"{self.uid}:{self.gid}"
