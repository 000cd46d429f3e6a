"""The user of a command, by number; the container's supervisor switches to it.

Design: docs/design/exec.md#users.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from hyperruntime.errors import SpecError

_MAX_ID = 2**31 - 1  # the largest id that engines accept
_LEAST_PIDS = 4  # a lane, an exec, and their short-lived helpers


def _whole(least: int, most: float, allowed: str) -> Any:  # noqa: ANN401 - an attrs validator
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise SpecError(f"RunAs.{attribute.name}", value, allowed)

    return check


_id = _whole(1, _MAX_ID, f"a number from 1 to {_MAX_ID}; root is not allowed")
_pids = attrs.validators.optional(
    _whole(_LEAST_PIDS, math.inf, f"a whole number of at least {_LEAST_PIDS}, or None")
)
_mask = _whole(0, 0o777, "a file mode mask such as 0o077")


@attrs.frozen(kw_only=True)
class RunAs:
    """An ordinary user that needs no entry in the image; its commands have no capabilities.

    Its processes cannot reach those of other users. ``HOME`` is ``/`` unless the command's
    environment sets it.

    Attributes:
        uid: user id in the container; if the engine maps ids, it must be a mapped one (below
            65,536).
        gid: group id; default is ``uid``. The user has no other groups.
        pids: limit on processes and threads of this uid, two for each running command included;
            None means no limit. Linux counts them over all containers of a user namespace, so with
            a rootful engine use a uid in one container only.
        umask: file mode mask of its commands.

    Example:
        >>> user = hr.RunAs(uid=1000, pids=64)  # for `container.exec(args, user=user)`
        >>> user.gid
        1000
    """

    uid: int = attrs.field(validator=_id)
    gid: int = attrs.field(
        default=attrs.Factory(lambda self: self.uid, takes_self=True), validator=_id
    )
    pids: int | None = attrs.field(default=None, validator=_pids)
    umask: int = attrs.field(default=0o077, validator=_mask)

    def prologue(self) -> bytes:
        """Return the shell code that a shell of this user runs before its first command."""
        lines = [f"umask {self.umask:04o}", "HOME=/", "export HOME"]
        if self.pids is not None:
            # dash has -p
            lines.append(f"ulimit -u {self.pids} 2>/dev/null || ulimit -p {self.pids} 2>/dev/null")
        return "\n".join((*lines, "")).encode()

    def __str__(self) -> str:
        """Return ``uid:gid``, the format of engines."""
        return f"{self.uid}:{self.gid}"
