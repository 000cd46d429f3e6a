"""The owners of files in images, which this user's subordinate ids stand for.

Only a process in the user namespace may give a file to a subordinate id, so a program there does
it. Without such ids, all files stay this user's, and belong to root inside.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from hyperruntime.errors import ImageError
from hyperruntime.host.engine_program import ALL_IDS
from hyperruntime.host.process import python_args, run_process

Owner = tuple[int, int]
_RECORD = struct.Struct("=QII")
# Nobody else writes to the tree, and the walk follows no link. A change of the owner removes the
# bits for set-user-ID. An owner that is not mapped is left out, and these bits with it: they would
# give the rights of another user, root.
_GIVE = """
import os, struct, sys
owners = {n: (u, g) for n, u, g in struct.iter_unpack("=QII", sys.stdin.buffer.read())}
left = [os.fsencode(sys.argv[1])]
while left:
    for one in os.scandir(left.pop()):
        status = one.stat(follow_symlinks=False)
        if one.is_dir(follow_symlinks=False):
            left.append(one.path)
        if (owner := owners.get(status.st_ino)) is None:
            continue
        try:
            os.lchown(one.path, *owner)
        except (OSError, OverflowError):
            pass
        now = os.lstat(one.path)
        mode = status.st_mode & (0o7777 if (now.st_uid, now.st_gid) == owner else 0o1777)
        if mode != now.st_mode & 0o7777:
            os.chmod(one.path, mode)
"""


@cache
def has_all_ids() -> bool:
    """Return whether this user has subordinate ids that can be users of a container."""
    try:
        return run_process(["unshare", *ALL_IDS, "true"], cwd="/").exit_code == 0
    except OSError:
        return False


def as_root_inside(args: Sequence[str]) -> list[str]:
    """Return the argv of a program that is root of the files of a container and of all its users,
    where this user has subordinate ids; else the argv as it is.
    """
    return ["unshare", *ALL_IDS, *args] if has_all_ids() else [*args]


def give_owners(tree: Path, owners: Mapping[int, Owner]) -> None:
    """Give files of a tree to users of its containers, if this user has subordinate ids.

    The directory itself stays root's.

    Args:
        tree: the tree.
        owners: the ids of the user and of the group inside, by the numbers of the files' inodes.

    Raises:
        ImageError: the files cannot be changed.
    """
    if not owners or not has_all_ids():
        return
    given = b"".join(_RECORD.pack(inode, *owner) for inode, owner in owners.items())
    args = as_root_inside(python_args("-I", "-S", "-c", _GIVE, str(tree)))
    done = run_process(args, input=given, cwd="/")
    if done.exit_code != 0:
        raise ImageError(f"the owners of its files cannot be set: {done.error_text}")
