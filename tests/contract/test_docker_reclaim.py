"""An ordinary user's Docker: the daemon reclaims files that its containers wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import ReclaimError
from hyperruntime.reclaim import walk
from hyperruntime.reclaim.trees import reclaim_trees
from hyperruntime_docker.probe import RECLAIM_ARGS

pytestmark = pytest.mark.docker


@pytest.fixture
def _without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deny this process the change of owners, as for an ordinary user."""

    def denied(path: str, until: float) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(walk, "reclaim_tree", denied)


@pytest.mark.usefixtures("_without_rights")
def test_files_of_all_users_are_given_to_the_owner_of_the_parent_directory(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    tree = tmp_path / "it's a tree"
    tree.mkdir()
    mount = hr.Mount(source=str(tree), target="/mnt/tree", read_only=False)
    script = "cd /mnt/tree && cp /bin/sh shell && chmod 6711 shell && chown 20001:20001 shell ."
    with runtime.container(hr.ContainerSpec(image=base_image, mounts=(mount,))) as container:
        container.exec(["sh", "-c", script]).check()
    reclaim_trees([tree], RECLAIM_ARGS, 60)
    shell = (tree / "shell").lstat()
    assert (shell.st_uid, shell.st_mode & 0o7777) == (tmp_path.stat().st_uid, 0o711 | 0o600)
    with pytest.raises(TimeoutError):
        reclaim_trees([tree], RECLAIM_ARGS, -1)


@pytest.mark.usefixtures("_without_rights")
def test_an_unreachable_daemon_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///there/is/none")
    with pytest.raises(ReclaimError, match="docker cannot be used"):
        reclaim_trees([tmp_path], RECLAIM_ARGS, 60)
