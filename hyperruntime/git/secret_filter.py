"""Take a user's repository without the files that hold its secrets.

A ``.env`` at the top of an agent repository configures the gateway of a run. It stays where it is: no commit of ours,
no container and no diff has it.
"""

from __future__ import annotations

import os

from hyperruntime.git.bare_repository import checked, object_format, write_text
from hyperruntime.git.command import git

ENV_FILE = ".env"


def without_secrets(commit: str, objects: str, scratch: str) -> tuple[str, str]:
    """Return a commit that has no secrets, and the object directory it is in; the same where there are none.

    Args:
        commit: of a user's repository. objects: its object directory, which is only read.
        scratch: an empty directory, to be removed once the commit is copied.

    Raises:
        RepositoryError: an object is missing, or git failed.
    """
    repository = os.path.join(scratch, "repository.git")
    git(["init", "-q", "--bare", "--template=", object_format(commit), "--", repository])
    own = os.path.join(repository, "objects")
    os.makedirs(os.path.join(own, "info"), exist_ok=True)
    write_text(own, "info/alternates", objects + "\n")
    env = {"GIT_DIR": repository, "GIT_INDEX_FILE": os.path.join(scratch, "index"), "GIT_WORK_TREE": scratch}
    if not git(["ls-tree", "--full-tree", "-z", "--name-only", checked(commit), "--", ENV_FILE], env=env):
        return commit, objects
    git(["read-tree", commit], env=env)
    git(["update-index", "--force-remove", "--", ENV_FILE], env=env)
    tree = git(["write-tree"], env=env).decode().strip()
    message = b"agent repository, without its " + ENV_FILE.encode()
    return git(["commit-tree", tree], env=env, input=message).decode().strip(), own
