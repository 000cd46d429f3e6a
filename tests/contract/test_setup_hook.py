"""A workspace hook that programs bring along: a cache of repositories at a fixed path, and a
worktree for each slot.

The hook's commands are those of hermes-agent's SWE environment, as its description lists them: it
removes the worktree, takes a lock beside a bare repository below ``/data/repo_cache``, fetches the
commit if it is missing, and adds a detached worktree in the slot's directory. The configurations
are those of docs/adapters.md.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.adapters.tool_backend import SlotToolBackend
from hyperruntime.git.command import git
from tests.params import first_quick
from tests.swecase import make_repository

pytestmark = pytest.mark.engine

SLOTS = 10
CACHE = "/data/repo_cache"


def hook(repo: str, commit: str) -> str:
    """Return the hook's command line; its quoting is part of the test."""
    slug, directory = repo.replace("/", "__"), repo.rpartition("/")[2]
    bare, lock = f"{CACHE}/{slug}.git", f"{CACHE}/.locks/{slug}.lock"
    known = f'git -C "{bare}" cat-file -e "{commit}^{{commit}}" 2>/dev/null'
    locked = "; ".join(
        (
            "set -e; export GIT_TERMINAL_PROMPT=0; export GIT_LFS_SKIP_SMUDGE=1",
            f'if [ ! -d "{bare}" ]; then git init --bare "{bare}"'
            f'; git -C "{bare}" remote add origin "file:///origin/{repo}.git"; fi',
            f'git -C "{bare}" remote set-url origin "file:///origin/{repo}.git"',
            f'git -C "{bare}" worktree prune || true',
            f'if ! {known}; then git -C "{bare}" fetch --depth 1 origin "{commit}" || true; fi',
            f'if ! {known}; then git -C "{bare}" fetch --prune origin; fi',
            f'git --git-dir="{bare}" worktree add --detach "{directory}" "{commit}"',
        )
    )
    begin = f"set -e; rm -rf {directory}; mkdir -p {CACHE}/.locks; : > {lock}"
    return f"{begin}; flock -x {lock} sh -lc '{locked}'"


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, list[str]]:
    """Make a served repository ``octo/app`` with two commits; return the directory of all
    repositories and them.
    """
    work = tmp_path / "work"
    first = make_repository(work, {"app.py": "print('one')\n"})
    (work / "app.py").write_text("print('two')\n")
    git(["-C", str(work), "commit", "-q", "-a", "-m", "more"])
    second = git(["-C", str(work), "rev-parse", "HEAD"]).decode().strip()
    bare = tmp_path / "origin/octo/app.git"
    git(["clone", "-q", "--bare", "--", str(work), str(bare)], env={"GIT_ALLOW_PROTOCOL": "file"})
    git(["-C", str(bare), "config", "uploadpack.allowAnySHA1InWant", "true"])
    return tmp_path / "origin", [first, second]


def shared_cache(directory: Path) -> tuple[dict[str, Any], ...]:
    """Make a directory whose files every user may change, and git's settings for it; return their
    mounts.
    """
    cache, settings = directory / "cache", directory / "gitconfig"
    cache.mkdir()
    cache.chmod(0o777)
    # setfacl -d -m u::rwx,g::rwx,o::rwx; source: the layout in linux/posix_acl_xattr.h
    entries = (struct.pack("<HHI", tag, 7, 0xFFFFFFFF) for tag in (0x01, 0x04, 0x20))
    os.setxattr(cache, "system.posix_acl_default", struct.pack("<I", 2) + b"".join(entries))
    settings.write_text("[safe]\n\tdirectory = *\n")
    settings.chmod(0o644)
    return (
        {"source": str(cache), "target": CACHE, "read_only": False},
        {"source": str(settings), "target": "/etc/gitconfig"},
    )


async def set_up(backend: SlotToolBackend, slots: list[Any], commit: str) -> None:
    """Run the hook in all slots at once, and check each worktree."""
    results = await backend.execute_batch(
        [(slot, "bash", {"command": hook("octo/app", commit)}) for slot in slots]
    )
    assert [result.output for result in results if not result.success] == []
    check = "cd app && git status --porcelain && git rev-parse HEAD && python3 app.py >>result"
    results = await backend.execute_batch([(slot, "bash", {"command": check}) for slot in slots])
    assert [result.output for result in results] == [f"{commit}\n"] * len(slots)


@pytest.mark.parametrize("isolation", first_quick("uid", "directory"))
async def test_the_hook_runs_in_ten_slots_of_one_container(
    runtime: hr.Runtime, runtime_name: str, base_image: str, tmp_path: Path, origin: tuple[Path, list[str]],
    isolation: str,
) -> None:  # fmt: skip
    if isolation == "uid" and not runtime.info.users:
        pytest.skip("this engine has one user in a container")
    repositories, (first, second) = origin
    mounts = [{"source": str(repositories), "target": "/origin"}]
    mounts += shared_cache(tmp_path) if isolation == "uid" else ()
    profile = {
        "image": base_image,
        "slots_per_container": SLOTS,
        "max_containers": 1,
        "isolation": isolation,
    }

    backend = SlotToolBackend({**profile, "mounts": mounts}, runtime=runtime_name)
    await backend.start()
    try:
        slots = [await backend.acquire(f"trajectory-{number}") for number in range(SLOTS)]
        assert len({slot.alloc_id for slot in slots}) == 1
        await set_up(backend, slots, first)
        for slot in slots[:5]:
            await backend.release(slot, reset_workspace=True)
        again = [await backend.acquire(f"later-{number}") for number in range(5)]
        await set_up(backend, again, second)  # the cache outlives the slots that wrote it
        await set_up(backend, slots[5:], first)
        for slot in (*again, *slots[5:]):
            await backend.release(slot, reset_workspace=True)
        assert (
            backend.get_status()["available_slots"] == backend.get_status()["total_slots"] == SLOTS
        )
        last = await backend.acquire("clean")
        await backend.execute_batch(
            [(last, "bash", {"command": f"rm -rf {CACHE}/* {CACHE}/.locks"})]
        )
    finally:
        await backend.stop()
    if isolation == "uid":
        assert list((tmp_path / "cache").iterdir()) == []
