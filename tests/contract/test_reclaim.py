"""Files that a container's users wrote in a mount are reclaimed for this user, with the driver's
``reclaim_args``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import ReclaimError
from hyperruntime.reclaim.trees import reclaim_trees, remove_reclaimed

pytestmark = pytest.mark.engine

WRITE = (
    "mkdir -p d/e && cp /bin/sh d/e/ && chmod 6755 d/e/sh && chmod 2700 d/e && chmod 0 d && "
    "mkfifo fifo && chmod 7777 fifo"
)


@pytest.fixture
def tree(runtime: hr.Runtime, base_image: str, tmp_path: Path) -> Iterator[Path]:
    """A tree that root and, if the engine has users, another user wrote in a container that is now
    closed.
    """
    path = tmp_path / "tree"
    path.mkdir()
    mount = hr.Mount(source=str(path), target="/mnt/tree", read_only=False)
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(mount,))) as container:
        container.exec(
            ["sh", "-c", f"cd /mnt/tree && mkdir -m 777 other root && cd root && {WRITE}"]
        ).check()
        if runtime.info.users:
            user = hr.RunAs(uid=20001)
            container.exec(["sh", "-c", f"cd /mnt/tree/other && {WRITE}"], user=user).check()
    yield path
    remove_reclaimed(path, runtime.info.reclaim_args)  # pytest could not remove it
    assert not path.exists()


def test_files_of_all_users_are_removed(tree: Path, runtime: hr.Runtime) -> None:
    remove_reclaimed(tree, runtime.info.reclaim_args)
    assert not tree.exists()


def test_a_driver_has_reclaim_args_only_if_they_are_needed(tree: Path, runtime: hr.Runtime) -> None:
    if runtime.info.reclaim_args:
        with pytest.raises(ReclaimError, match="may not change"):
            reclaim_trees([tree], (), 60)
    else:
        reclaim_trees([tree], (), 60)


def test_a_reclaim_ends_at_its_deadline(tree: Path, runtime: hr.Runtime) -> None:
    with pytest.raises(TimeoutError):
        reclaim_trees([tree], runtime.info.reclaim_args, 0)
