"""The disk limit counts what a container changes in its image's files, for each way in which Podman
stores them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.contract.podman_accounts import IMAGE, PodmanAccount

pytestmark = pytest.mark.engine

# the image has about 2 MB, which are no change
SCRIPT = """
import sys
import hyperruntime as hr
from hyperruntime.errors import ContainerLostError
limits = hr.Limits(pids=None, disk_bytes=1_500_000)
with hr.open_runtime("podman") as runtime:
    for then in ("true", "rm /b"):  # a deleted file takes space while it is open
        with runtime.container(hr.ContainerSpec(image=sys.argv[1], limits=limits)) as one:
            small = "dd if=/dev/zero of=/a bs=1k count=900; sleep 3"
            print(one.exec(["sh", "-c", small]).exit_code)
            large = f"exec 3>/b; {then}; dd if=/dev/zero bs=1k count=9000 >&3; sleep 60"
            try:
                one.exec(["sh", "-c", large])
            except ContainerLostError as error:
                print(error.post_mortem.limit)
"""


@pytest.fixture
def account() -> Iterator[PodmanAccount]:
    """An account with a store of its own; afterwards, nothing of it is left."""
    assert os.geteuid() != 0, "scripts/test runs this as the ordinary user"
    place = PodmanAccount()
    yield place
    place.kill_all()
    place.migrate()
    place.remove()


@pytest.mark.parametrize(
    "storage",
    [
        '[storage]\ndriver = "overlay"\n',
        '[storage]\ndriver = "overlay"\n[storage.options.overlay]\n'
        'mount_program = "/usr/bin/fuse-overlayfs"\n',
        '[storage]\ndriver = "vfs"\n',
    ],
    ids=["overlay", "fuse-overlayfs", "vfs"],
)
def test_a_container_that_writes_too_much_over_its_image_is_ended(
    account: PodmanAccount, storage: str
) -> None:
    account.config.write_text(storage)
    account.make_image("first")
    done = account.python(SCRIPT, IMAGE)
    assert done.exit_code == 0, done.stderr.decode()
    assert done.stdout.decode().split() == ["0", "disk_bytes"] * 2
    assert b"disk limit counts no changes" not in done.stderr
