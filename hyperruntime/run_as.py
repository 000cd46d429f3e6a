"""The user of a command: by number, so that the container's supervisor switches to it, or by a name
of the container's own tables; pure, no I/O.

Design: docs/design/exec.md#users.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from hyperruntime.errors import SpecError, UserNotFoundError

_MAX_ID = 2**31 - 1  # the largest id that engines accept
_NAMED_UMASK = 0o022  # of a user by name, as in a shell that an engine attaches
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


@attrs.frozen(kw_only=True)
class NamedUser:
    """An ordinary user of a container, who is not in the group of root.

    Attributes:
        ids: its ids.
        run_as: the user of its commands: the ids, or the name if it has further groups, which an
            engine looks up.
        home: its home directory; ``/`` if it has no entry.
    """

    ids: RunAs
    run_as: str | RunAs
    home: str


def is_root(user: str) -> bool:
    """Return whether a user is root with root's group."""
    name, _, group = user.partition(":")
    return name in ("root", "0") and group in ("", "root", "0")


def find_user(user: str, passwd: str, groups: str) -> RunAs:
    """Return the ids of a user: ``name`` or ``uid``, with an optional ``:group``.

    A uid without a group has the group of its entry; without an entry, the group of the same
    number.

    Args:
        user: the user.
        passwd: content of the container's ``/etc/passwd``, which is not trusted.
        groups: content of the container's ``/etc/group``.

    Raises:
        UserNotFoundError: the user or the group is unknown in the container.
        SpecError: the uid or the gid is 0, because a :class:`RunAs` cannot be root.

    Source: passwd(5), group(5).
    """
    name, _, group = user.partition(":")
    entry = _entry(passwd, name)
    uid = int(name) if name.isdigit() else _number(entry, 2)
    gid = _number(entry, 3) if entry else uid
    if group:
        gid = int(group) if group.isdigit() else _number(_entry(groups, group), 2)
    if uid is None or gid is None:
        raise UserNotFoundError(user)
    return RunAs(uid=uid, gid=gid, umask=_NAMED_UMASK)


def find_named(user: str, passwd: str, groups: str) -> NamedUser:
    """Return an ordinary user; arguments and errors are those of :func:`find_user`.

    Raises:
        SpecError: it is root, or in the group of root, which may change files of root.
    """
    name, _, group = user.partition(":")
    entry = _entry(passwd, name)
    login = entry[0] if entry else name
    rows = [] if group else [line.split(":") for line in groups.splitlines()]
    further = {_number(row, 2) for row in rows if login in "".join(row[3:4]).split(",")}
    refused = SpecError("user", user, "an ordinary user, neither root nor in the group of root")
    try:
        ids = find_user(user, passwd, groups)
    except UserNotFoundError:
        raise
    except SpecError:
        raise refused from None
    if 0 in further:
        raise refused
    home = entry[5] if len(entry) > 5 and entry[5].startswith("/") else "/"
    return NamedUser(ids=ids, run_as=login if further - {ids.gid} else ids, home=home)


def _entry(table: str, name: str) -> list[str]:
    rows = [line.split(":") for line in table.splitlines()]
    return next(
        (row for row in rows if name in (row[0], *(row[2:3] if name.isdigit() else ()))), []
    )


def _number(row: list[str], place: int) -> int | None:
    text = row[place] if len(row) > place else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
