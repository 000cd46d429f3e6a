"""Images in a read-only store that storage.conf names beside the user's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.podman_accounts import IMAGE, PodmanAccount

pytestmark = pytest.mark.engine

SCRIPT = """
import sys
import hyperruntime as hr
from hyperruntime.errors import EngineError
image = sys.argv[1]
with hr.open_runtime("podman") as runtime:
    print(runtime.images.exists(image), [one.references for one in runtime.images.list()])
    with runtime.container(hr.ContainerSpec(image=image, limits=hr.Limits(pids=None))) as one:
        one.exec(["sh", "-c", "cat /word; echo more >/more"]).check()
        print(one.exec(["cat", "/word"]).stdout.decode().strip())
        with one.fork() as fork:
            print(fork.exec(["cat", "/word", "/more"]).stdout.decode().split())
    with runtime.container(hr.ContainerSpec(image=image)) as again:
        print(again.exec(["cat", "/more"]).exit_code)
    runtime.images.save(image, sys.argv[2])
    try:
        runtime.images.remove(image)
    except EngineError as error:
        print(error)
"""
SQUASHED = "squashed"


@pytest.fixture
def account() -> Iterator[PodmanAccount]:
    """An account whose store has an image; afterwards, nothing of it is left."""
    assert os.geteuid() != 0, "scripts/test runs this as the ordinary user"
    place = PodmanAccount()
    place.config.write_text('[storage]\ndriver = "overlay"\n')
    place.make_image("first")
    yield place
    place.kill_all()
    place.migrate()
    place.remove()


@pytest.fixture(params=["directory", SQUASHED])
def shared(request: pytest.FixtureRequest, account: PodmanAccount) -> Iterator[Path]:
    """The store made read-only, which is the only one with the image."""
    own = account.directory / "data" / "containers" / "storage"
    place = account.directory / "shared"
    account.podman("system", "migrate")
    if request.param == SQUASHED:
        packed = account.directory / "shared.squash"
        # `overlay` is a mount of Podman's on some machines
        subprocess.run(["mksquashfs", own, packed, "-quiet", "-no-progress"], check=True)
        place.mkdir()
        subprocess.run(["squashfuse", packed, place], check=True)
    else:
        subprocess.run(["cp", "-a", own, place], check=True)
        subprocess.run(["chmod", "-R", "a-w", place], check=True)
    account.config.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{account.directory}/new"\n'
        f'runroot = "{account.run}/new"\n'  # `podman commit` needs it beside graphroot
        f'[storage.options]\nadditionalimagestores = ["{place}"]\n'
    )
    yield place
    if request.param == SQUASHED:
        subprocess.run(["fusermount3", "-uz", place], check=True)


def test_an_image_of_a_read_only_store_is_found_run_forked_and_saved_but_not_removed(
    account: PodmanAccount, shared: Path
) -> None:
    archive = account.directory / "saved.tar"
    done = account.python(SCRIPT, IMAGE, str(archive))
    assert done.exit_code == 0, done.stderr.decode()
    found, word, both, clean, refused = done.stdout.decode().splitlines()
    assert found == f"True [('{IMAGE}',)]"
    assert word == "first"
    assert both == "['first', 'more']"
    assert clean == "1"
    assert archive.stat().st_size > 0
    assert (
        "lies in a read-only store (`additionalimagestores` in storage.conf); remove it" in refused
    )
