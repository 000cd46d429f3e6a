"""Rootless Podman works again after all processes of its user were killed, as at the end of a batch
job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from hyperruntime.host.process import find_program, run_process
from tests.contract.podman_accounts import PodmanAccount

pytestmark = pytest.mark.engine

# A container of the host's userland in a new store of the user; then the command of another
# process, under our driver.
HOLD = """
import subprocess
import sys
from pathlib import Path
from hyperruntime_podman.args import in_user_store, probe_args
from hyperruntime_podman.edge import environment
from hyperruntime.host.engine_program import make_userland
from hyperruntime_podman.probe import probe
rootfs = sys.argv[1] + "/rootfs"
userland = make_userland(Path(rootfs))
args = probe_args(in_user_store(probe().settings), rootfs, userland, "sleep 1000", limited=False)
args.insert(args.index("run") + 1, "--detach")
subprocess.run(["podman", *args], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
"""
LIST = """
import hyperruntime as hr
with hr.open_runtime("podman") as runtime:
    print("works", len(runtime.images.list()), runtime.info.rootless)
"""


class Podman(PodmanAccount):
    """A rootless Podman with one container."""

    def __init__(self) -> None:
        super().__init__()
        held = self.python(HOLD, str(self.directory / "rootfs"))
        assert held.exit_code == 0, held.stderr.decode()
        assert len(self.pid_files("conmon.pid")) == 1
        assert len(self.pid_files("pause.pid")) == 1


@pytest.fixture
def podman() -> Iterator[Podman]:
    """The account; afterwards, nothing of it is left."""
    assert os.geteuid() != 0, (
        "root's Podman has no pause process; scripts/test runs this as the ordinary user"
    )
    place = Podman()
    yield place
    place.kill_all()
    place.migrate()
    run_process(["podman", "rm", "--all", "--force"], env=place.env, timeout_s=60)
    script = 'umount --recursive --lazy "$1/containers/storage/overlay"; rm -rf "$1"'
    args = ["podman", "unshare", "/bin/sh", "-c", script, "sh", str(place.directory / "data")]
    subprocess.run(args, env=place.env, stderr=subprocess.DEVNULL, timeout=60, check=True)
    place.kill_all()
    shutil.rmtree(place.directory)


def test_podman_works_after_all_its_processes_were_killed(podman: Podman) -> None:
    podman.kill_all()
    stuck = run_process(["podman", "ps"], env=podman.env, timeout_s=60)
    assert stuck.exit_code != 0, "this Podman needs no help: the test is out of date"
    again = podman.python(LIST)
    assert again.stdout == b"works 0 True\n", again.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conmon.pid", "pause.pid"])
def test_the_number_of_a_killed_process_may_belong_to_another_one(
    podman: Podman, name: str
) -> None:
    """The other process has namespaces of its own, in which Podman would not see our files."""
    unshare = find_program("unshare")
    assert unshare is not None
    files = podman.pid_files(name)
    podman.kill_all()
    ready = "mount -t tmpfs none /tmp && echo ready; exec sleep 1000"
    args = [unshare, "--user", "--map-root-user", "--mount", "/bin/sh", "-c", ready]
    with subprocess.Popen(args, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            for file in files:
                file.write_text(str(other.pid))
            again = podman.python(LIST)
            assert again.stdout == b"works 0 True\n", again.stderr.decode()
            assert other.poll() is None, "a process that is not Podman's was killed"
        finally:
            other.kill()


def test_a_container_that_runs_is_not_touched(podman: Podman) -> None:
    """Without the pause process Podman joins the container, and so must we."""
    podman.kill_pause()
    assert podman.python(LIST).stdout == b"works 0 True\n"
    listed = run_process(["podman", "ps", "--quiet"], env=podman.env, timeout_s=60)
    assert len(listed.stdout.split()) == 1
