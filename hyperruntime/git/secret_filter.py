"""Remove the files with secrets from a commit of the user's repository.

The file ``.env`` at the top of an agent repository configures the gateway of a run. It stays in that repository: no
commit of the store, no container and no diff contains it.
"""

from __future__ import annotations

import os

from hyperruntime.git.bare_repository import checked, object_format, write_text
from hyperruntime.git.command import git

ENV_FILE = ".env"


def without_secrets(commit: str, objects: str, scratch: str) -> tuple[str, str]:
    """Return a commit without ``.env``, and its object directory; both are unchanged if there is no ``.env``.

    Args:
        commit: full name of a commit in the user's repository.
        objects: object directory of that repository; it is only read.
        scratch: an empty directory; the caller removes it after copying the commit.

    Raises:
        RepositoryError: an object is missing, or git failed.
        SpecError: ``commit`` is not a full commit name.
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
