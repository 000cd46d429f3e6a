"""Root, whose containers stay in root's one store, reads what vfs costs; an ordinary user in
``test_podman_own_store``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.contract.podman_accounts import IMAGE, PodmanAccount

pytestmark = pytest.mark.engine


@pytest.fixture
def root() -> Iterator[PodmanAccount]:
    """Root with a store that has the driver vfs, and one image of busybox in it."""
    account = PodmanAccount()
    storage = account.directory / "data" / "containers" / "storage"
    account.config.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{storage}"\n'
        f'runroot = "{account.run}/containers"\n'
    )
    account.env["CONTAINERS_STORAGE_CONF"] = str(account.config)
    assert account.podman("info", "--format", "{{.Store.GraphRoot}}") == str(storage)
    account.make_image("first")
    yield account
    shutil.rmtree(account.directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="test_podman_own_store checks an ordinary user's")
def test_a_run_on_vfs_says_in_one_line_what_it_costs_and_doctor_says_the_same(
    root: PodmanAccount,
) -> None:
    command = ("--runtime", "podman", "--log-json", "exec", "--image", IMAGE, "--", "echo", "works")
    done = root.hyperrun(*command)
    assert (done.exit_code, done.stdout) == (0, b"works\n"), done.stderr.decode()
    (line,) = [json.loads(text) for text in done.stderr.decode().splitlines() if "vfs" in text]
    assert "copies its whole image" in line["cost"]
    assert line["why"] == "root has one store"
    assert "podman system reset --force" in line["next_step"]
    shown = root.hyperrun("doctor", "podman").stdout.decode()
    assert line["cost"] in shown
    assert line["next_step"] in shown
