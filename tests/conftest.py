"""Fixtures of the engine tests. A missing engine or image is a failure, never a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.process import run_process

PREFIX = "localhost/hyperruntime-test/"
SHELLS = ("dash", "busybox", "bash")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the engine's tests run against any driver."""
    default = os.environ.get("HYPERRUNTIME_TEST_RUNTIME", "podman")
    parser.addoption("--runtime", metavar="NAME", default=default, help="driver that the engine tests use")


@pytest.fixture(scope="session")
def runtime_name(request: pytest.FixtureRequest) -> str:
    """The driver's name: ``--runtime``, HYPERRUNTIME_TEST_RUNTIME, or podman."""
    return str(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def runtime(runtime_name: str) -> Iterator[hr.Runtime]:
    """The driver under test, opened for the whole session."""
    with hr.open_runtime(runtime_name) as opened:
        yield opened


@attrs.frozen
class EngineCommand:
    """The engine's own command line, as a witness that is not us; ``podman`` and ``docker`` speak alike.

    Attributes:
        program: its name.
    """

    program: str

    def run(self, *args: str) -> str:
        """Return what a command prints; it must succeed."""
        result = run_process([self.program, *args])
        assert result.exit_code == 0, result.stderr
        return result.stdout.decode()

    def containers(self, *filters: str) -> list[str]:
        """Return the names of all containers, running or not."""
        words = [word for text in filters for word in ("--filter", text)]
        return self.run("ps", "--all", "--format", "{{.Names}}", *words).split()

    def remove(self, *names: str) -> None:
        """Remove containers that may be gone already."""
        for name in names:
            run_process([self.program, "rm", "--force", *(["--time", "0"] if self.program == "podman" else []), name])


@pytest.fixture(scope="session")
def engine_command(runtime_name: str) -> EngineCommand:
    """The command line of the engine under test."""
    assert runtime_name in ("podman", "docker"), f"there is no command that lists containers of {runtime_name}"
    return EngineCommand(runtime_name)


@pytest.fixture(scope="session")
def base_image(runtime: hr.Runtime) -> str:
    """The base image (dash as /bin/sh), made from Debian packages when it is missing."""
    return runtime.images.ensure("base")


@pytest.fixture(scope="session")
def busybox_image(runtime: hr.Runtime, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of nothing but a static busybox (ash as /bin/sh)."""
    reference = f"{PREFIX}busybox:latest"
    if not runtime.images.exists(reference):
        root = tmp_path_factory.mktemp("busybox")
        (root / "bin").mkdir()
        (root / "tmp").mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", root / "bin/busybox")
        for applet in "sh true false cat echo sleep tar mkdir ls env id ps setsid dd pwd rm chmod yes head wc".split():
            (root / "bin" / applet).symlink_to("busybox")
        tar = root.parent / "busybox.tar"
        run_process(["tar", "-C", str(root), "-cf", str(tar), "."])
        runtime.images._images.load_rootfs(tar, reference)
    return reference


@pytest.fixture(scope="session")
def bash_image(runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image with bash as /bin/sh, built from a Containerfile."""
    reference = f"{PREFIX}bash:latest"
    folder = tmp_path_factory.mktemp("bash image")
    (folder / "Containerfile").write_text(f"FROM {base_image}\nRUN ln -sf bash /bin/sh\n")
    return runtime.images.build(reference, containerfile=folder / "Containerfile")


@pytest.fixture(scope="session")
def images(base_image: str, busybox_image: str, bash_image: str) -> dict[str, str]:
    """One image for each shell the supervisor must work with."""
    return {"dash": base_image, "busybox": busybox_image, "bash": bash_image}


@pytest.fixture(scope="module", params=SHELLS)
def shell_container(
    request: pytest.FixtureRequest, runtime: hr.Runtime, images: dict[str, str]
) -> Iterator[hr.Container]:
    """A container for each shell."""
    with runtime.container(hr.ContainerSpec(image=images[request.param])) as container:
        yield container


@pytest.fixture(scope="module")
def container(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    """A container of the base image."""
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        yield started


@pytest.fixture
def processes(container: hr.Container) -> Callable[[], list[str]]:
    """The command lines of what runs in ``container`` beside the library's own shells."""

    def listed() -> list[str]:
        lines = container.exec(["ps", "-axo", "args="]).stdout.decode().splitlines()
        own = ("/run/podman-init", "/sbin/docker-init", "/bin/sh", "ps -axo", "[sh]")
        return [line for line in lines if not line.startswith(own) and "lane.sh" not in line]

    return listed


@pytest.fixture
def odd_path(tmp_path: Path) -> Path:
    """A directory whose name has a space and a quote in it."""
    path = tmp_path / "a 'dir\""
    path.mkdir()
    return path


def is_root() -> bool:
    """Tell whether the tests run as root."""
    return os.geteuid() == 0
