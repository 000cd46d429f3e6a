"""podman-hpc as the program of the driver: a wrapper of a site, with images in a read-only store.

``tests/sites/podman-hpc`` stands in for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.podman_accounts import IMAGE, PodmanAccount

pytestmark = pytest.mark.engine

STAND_IN = Path(__file__).parents[1] / "sites" / "podman-hpc"
SCRIPT = """
import sys
import hyperruntime as hr
from hyperruntime.errors import HyperRuntimeError
def tried(action):
    try:
        return action()
    except HyperRuntimeError as error:
        return str(error)
def read(network, base=None):
    spec = hr.ContainerSpec(image=sys.argv[1], network=network, limits=hr.Limits(pids=None))
    with runtime.container(spec) as one:
        status = one.exec(["cat", "/word", "/proc/self/status"]).stdout.decode()
        with one.fork() as fork:
            return fork.exec(["cat", "/word"]).stdout.decode().strip(), "Seccomp:\\t2" in status
with hr.open_runtime("podman") as runtime:
    print(runtime.info.networks)
    print(runtime.images.exists(sys.argv[1]), [one.references for one in runtime.images.list()])
    for network in ("none", "host", "bridge"):
        print(tried(lambda: read(network)))
    print(tried(lambda: runtime.images.remove(sys.argv[1])))
    print(tried(lambda: runtime.images.pull("127.0.0.1:1/nothing:latest", on_output=len)))
    print(len(runtime.containers()))
"""


class Account(PodmanAccount):
    """An account whose Podman is the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        (programs := self.directory / "bin").mkdir()
        shutil.copy(STAND_IN, programs)
        self.env |= {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HYPERRUNTIME_PODMAN": "podman-hpc",
            "PODMANHPC_GRAPH_ROOT": str(self.directory / "hpc"),
            "PODMANHPC_RUN_ROOT": str(self.run / "hpc"),
            "PODMANHPC_CONFIG_HOME": str(self.directory / "hpc-config"),
            "SCRATCH": str(self.directory / "scratch"),
            "USER": self.env.get("USER", "somebody"),
        }

    def podman(self, *args: str, **more: str) -> str:
        """Run the stand-in, which must succeed."""
        return super().podman(*args, program="podman-hpc", **more)


@pytest.fixture
def account() -> Iterator[Account]:
    """The account, with an image that is only in the store of migrated images."""
    assert os.geteuid() != 0, "scripts/test runs this as the ordinary user"
    place = Account()
    place.make_image("first")
    place.podman("migrate", IMAGE)
    place.podman("rmi", IMAGE)
    yield place
    place.kill_all()
    place.migrate()
    place.remove()


@pytest.mark.parametrize("networks", ["none and host", "host"])
def test_containers_run_from_a_migrated_image_on_the_networks_of_the_site(
    account: Account, networks: str
) -> None:
    done = account.python(SCRIPT, IMAGE, PODMANHPC_STANDIN_NETWORK=networks)
    assert done.exit_code == 0, done.stderr.decode()
    offered, found, *read, removed, pulled, left = done.stdout.decode().splitlines()
    works = str(("first", True))
    assert offered == ("('host',)" if networks == "host" else "('none', 'host')")
    assert found == f"True [('{IMAGE}',)]"
    assert read[1] == works
    assert read[2].startswith("podman cannot honour network: no private network works")
    if networks == "host":
        assert read[0].startswith("podman cannot honour network: every container here has")
    else:
        assert read[0] == works
    assert "lies in a read-only store" in removed
    assert "127.0.0.1:1/nothing:latest" in pulled
    assert "Pull failed" not in pulled, "the reason stands before it"
    assert left == "0"


def test_a_program_that_does_not_exist_is_named_with_its_variable(
    account: Account,
) -> None:
    shown = account.hyperrun("doctor", "podman", HYPERRUNTIME_PODMAN="podman-hpcc")
    for words in ("podman-hpcc: not on PATH", "HYPERRUNTIME_PODMAN names 'podman-hpcc'"):
        assert words in shown.stdout.decode()
    shown = account.hyperrun("doctor", "podman")
    assert "ok    podman-hpc: " in shown.stdout.decode()
