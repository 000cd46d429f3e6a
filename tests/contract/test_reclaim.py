"""Files that users of a container wrote in a mount become those of this user, by the rights that the driver names."""

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
    """What root and, where there is one, another user of a container wrote; the container is gone."""
    path = tmp_path / "tree"
    path.mkdir()
    mount = hr.Mount(source=str(path), target="/mnt/tree", read_only=False)
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(mount,))) as container:
        container.exec(["sh", "-c", f"cd /mnt/tree && mkdir -m 777 other root && cd root && {WRITE}"]).check()
        if runtime.info.users:
            user = hr.RunAs(uid=20001)
            container.exec(["sh", "-c", f"cd /mnt/tree/other && {WRITE}"], user=user).check()
    yield path
    remove_reclaimed(path, runtime.info.reclaim_args)  # or pytest could not
    assert not path.exists()


def test_they_are_removed(tree: Path, runtime: hr.Runtime) -> None:
    remove_reclaimed(tree, runtime.info.reclaim_args)
    assert not tree.exists()


def test_a_driver_names_rights_only_where_they_are_needed(tree: Path, runtime: hr.Runtime) -> None:
    if runtime.info.reclaim_args:
        with pytest.raises(ReclaimError, match="may not change"):
            reclaim_trees([tree], (), 60)
    else:
        reclaim_trees([tree], (), 60)


def test_what_takes_too_long_is_given_up(tree: Path, runtime: hr.Runtime) -> None:
    with pytest.raises(TimeoutError):
        reclaim_trees([tree], runtime.info.reclaim_args, 0)
