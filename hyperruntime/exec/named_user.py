"""Find a container's user by name, for engines that attach no shell as another user; pure, no I/O."""

from __future__ import annotations

from hyperruntime.errors import UserNotFoundError
from hyperruntime.run_as import RunAs

_UMASK = 0o022  # as in a shell that an engine attaches


def is_root(user: str) -> bool:
    """Return whether a user is root with root's group."""
    name, _, group = user.partition(":")
    return name in ("root", "0") and group in ("", "root", "0")


def find_user(user: str, passwd: str, groups: str) -> RunAs:
    """Return the ids of a user: ``name`` or ``uid``, with an optional ``:group``.

    A uid without a group has the group of its entry; without an entry, the group of the same number.

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
    return RunAs(uid=uid, gid=gid, umask=_UMASK)


def _entry(table: str, name: str) -> list[str]:
    rows = [line.split(":") for line in table.splitlines()]
    return next((row for row in rows if name in (row[0], *(row[2:3] if name.isdigit() else ()))), [])


def _number(row: list[str], place: int) -> int | None:
    text = row[place] if len(row) > place else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
