"""Find a container's user by name, for engines that attach no shell as another user; pure, no
I/O.
"""

from __future__ import annotations

import attrs

from hyperruntime.errors import SpecError, UserNotFoundError
from hyperruntime.run_as import RunAs

_UMASK = 0o022  # as in a shell that an engine attaches


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
    return RunAs(uid=uid, gid=gid, umask=_UMASK)


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
