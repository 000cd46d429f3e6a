"""The user of a command: by number, so that the container's supervisor switches to it, or by a name
of the container's own tables; pure, no I/O.

Design: docs/design/exec.md#users.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

import attrs

from hyperruntime.errors import SpecError, UserNotFoundError

_MAX_ID = 2**31 - 1  # the largest id that engines accept
_NAMED_UMASK = 0o022  # of a user by name, as in a shell that an engine attaches
_MOST_GROUPS = 64
_LEAST_PIDS = 4  # a lane, an exec, and their short-lived helpers


def _whole(least: int, most: float, allowed: str) -> Any:  # noqa: ANN401 - an attrs validator
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise SpecError(f"RunAs.{attribute.name}", value, allowed)

    return check


def _home(_: object, __: object, value: object) -> None:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise SpecError("RunAs.home", value, "an absolute path")


def _groups(_: object, __: object, value: tuple[object, ...]) -> None:
    if len(value) > _MOST_GROUPS or not all(
        type(one) is int and 0 <= one <= _MAX_ID for one in value
    ):
        raise SpecError("RunAs.groups", value, f"at most {_MOST_GROUPS} numbers of groups")


_uid = _whole(1, _MAX_ID, f"a number from 1 to {_MAX_ID}; root is not allowed")
_gid = _whole(0, _MAX_ID, f"a number up to {_MAX_ID}")
_pids = attrs.validators.optional(
    _whole(_LEAST_PIDS, math.inf, f"a whole number of at least {_LEAST_PIDS}, or None")
)
_mask = _whole(0, 0o777, "a file mode mask such as 0o077")


@attrs.frozen(kw_only=True)
class RunAs:
    """An ordinary user that needs no entry in the image; its commands have no capabilities.

    Its processes cannot reach those of other users.

    Attributes:
        uid: user id in the container; if the engine maps ids, it must be a mapped one (below
            65,536).
        gid: group id; default is ``uid``.
        groups: the ids of its further groups, at most 64.
        pids: limit on processes and threads of this uid, two for each running command included;
            None means no limit. Linux counts them over all containers of a user namespace, so with
            a rootful engine use a uid in one container only.
        umask: file mode mask of its commands.
        home: ``HOME`` of its commands, unless their environment sets it.

    Example:
        >>> user = hr.RunAs(uid=1000, pids=64)  # for `container.exec(args, user=user)`
        >>> user.gid
        1000
    """

    uid: int = attrs.field(validator=_uid)
    gid: int = attrs.field(
        default=attrs.Factory(lambda self: self.uid, takes_self=True), validator=_gid
    )
    groups: tuple[int, ...] = attrs.field(default=(), validator=_groups)
    pids: int | None = attrs.field(default=None, validator=_pids)
    umask: int = attrs.field(default=0o077, validator=_mask)
    home: str = attrs.field(default="/", validator=_home)

    def prologue(self) -> bytes:
        """Return the shell code that a shell of this user runs before its first command."""
        lines = [f"umask {self.umask:04o}", f"HOME={shlex.quote(self.home)}", "export HOME"]
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
    """

    ids: RunAs
    run_as: str | RunAs


def is_root(user: str) -> bool:
    """Return whether a user is root with root's group."""
    name, _, group = user.partition(":")
    return name in ("root", "0") and group in ("", "root", "0")


def find_user(user: str, passwd: str, groups: str, group_of_others: int | None = None) -> RunAs:
    """Return the ids of a user: ``name`` or ``uid``, with an optional ``:group``.

    Without a group, it has the group of its entry, and its further groups. ``HOME`` is that of the
    entry, or ``/``.

    Args:
        user: the user.
        passwd: content of the container's ``/etc/passwd``, which is not trusted.
        groups: content of the container's ``/etc/group``.
        group_of_others: the group of a uid without an entry; None means that of the same number.

    Raises:
        UserNotFoundError: the user or the group is unknown in the container.
        SpecError: the uid is 0, because a :class:`RunAs` cannot be root.

    Source: passwd(5), group(5).
    """
    name, _, group = user.partition(":")
    entry = _entry(passwd, name)
    uid = int(name) if name.isdigit() else _number(entry, 2)
    other = uid if group_of_others is None else group_of_others
    gid = _number(entry, 3) if entry else other
    if group:
        gid = int(group) if group.isdigit() else _number(_entry(groups, group), 2)
    if uid is None or gid is None:
        raise UserNotFoundError(user)
    home = entry[5] if len(entry) > 5 and entry[5].startswith("/") else "/"
    login = entry[0] if entry else name
    rows = [] if group else [line.split(":") for line in groups.splitlines()]
    further = {_number(row, 2) for row in rows if login in "".join(row[3:4]).split(",")}
    known = sorted(one for one in further if one is not None and one != gid)[:_MOST_GROUPS]
    return RunAs(uid=uid, gid=gid, groups=tuple(known), umask=_NAMED_UMASK, home=home)


def find_named(user: str, passwd: str, groups: str) -> NamedUser:
    """Return an ordinary user; arguments and errors are those of :func:`find_user`.

    Raises:
        SpecError: it is root, or in the group of root, which may change files of root.
    """
    refused = SpecError("user", user, "an ordinary user, neither root nor in the group of root")
    try:
        ids = find_user(user, passwd, groups)
    except UserNotFoundError:
        raise
    except SpecError:
        raise refused from None
    if 0 in (*ids.groups, ids.gid):
        raise refused
    name = user.partition(":")[0]
    entry = _entry(passwd, name)
    return NamedUser(ids=ids, run_as=(entry[0] if entry else name) if ids.groups else ids)


def _entry(table: str, name: str) -> list[str]:
    rows = [line.split(":") for line in table.splitlines()]
    return next(
        (row for row in rows if name in (row[0], *(row[2:3] if name.isdigit() else ()))), []
    )


def _number(row: list[str], place: int) -> int | None:
    text = row[place] if len(row) > place else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
