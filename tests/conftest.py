"""Fixtures of the engine tests. A missing engine or image is a failure, never a skip."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import psutil
import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.owner import LABEL
from hyperruntime.host.process import run_process

PREFIX = "localhost/hyperruntime-test/"
SHELLS = ("dash", "busybox", "bash")

# The same examples in each run, however slow the machine is; `--hypothesis-profile=other` tries others.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.register_profile("other", deadline=None, print_blob=True)
hypothesis.settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the engine's tests run against any driver."""
    default = os.environ.get("HYPERRUNTIME_TEST_RUNTIME", "podman")
    parser.addoption("--runtime", metavar="NAME", default=default, help="driver that the engine tests use")
    parser.addoption("--one-shell", action="store_true", help="leave out the images of other shells than dash")


def pytest_configure() -> None:
    """Give SIGINT its meaning back, which a shell takes from what it starts in the background: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Leave structlog to other tests as they expect it: commands configure it."""
    yield
    if structlog := sys.modules.get("structlog"):
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def runtime_name(request: pytest.FixtureRequest) -> str:
    """The driver's name: ``--runtime``, HYPERRUNTIME_TEST_RUNTIME, or podman."""
    return str(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def runtime(runtime_name: str) -> Iterator[hr.Runtime]:
    """The driver under test, opened for the whole session."""
    with hr.open_runtime(runtime_name) as opened:
        yield opened


ENGINES = ("podman", "docker", "apptainer", "bubblewrap")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the contract tests of another engine than the one under test: modules ``test_ENGINE...``.

    With ``--one-shell`` also what is done with other shells: they were looked at on another engine.
    """
    chosen = config.getoption("--runtime")
    others = tuple(f"test_{engine}" for engine in ENGINES if engine != chosen)
    contract = [item for item in items if item.path.parent.name == "contract"]
    foreign = [item for item in contract if item.path.stem.startswith(others)]
    if config.getoption("--one-shell"):
        foreign += [item for item in contract if item not in foreign and _parameters(item) & set(SHELLS[1:])]
    if foreign:
        config.hook.pytest_deselected(items=foreign)
        items[:] = [item for item in items if item not in foreign]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # a module shares its containers


def _parameters(item: pytest.Item) -> set[object]:
    """Return the texts that a test is parametrized with."""
    spec = getattr(item, "callspec", None)
    return {value for value in spec.params.values() if isinstance(value, str)} if spec is not None else set()


@attrs.frozen
class EngineCommand:
    """The engine's own command line, as a witness that is not us; ``podman`` and ``docker`` speak alike.

    Attributes:
        program: its name.
        options: what each of its commands needs on this machine.
        run_options: what it needs to run a container on this machine.
    """

    program: str
    options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()

    def run(self, *args: str) -> str:
        """Return what a command prints; it must succeed."""
        result = run_process([self.program, *self.options, *args])
        assert result.exit_code == 0, result.stderr
        return result.stdout.decode()

    def containers(self, *filters: str) -> list[str]:
        """Return the names of all containers, running or not."""
        words = [word for text in filters for word in ("--filter", text)]
        return self.run("ps", "--all", "--format", "{{.Names}}", *words).split()

    def start(self, image: str, name: str, labels: Mapping[str, str], *options: str) -> None:
        """Start a container that sleeps, past the library."""
        words = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
        args = ["run", "--detach", "--network", "none", "--name", name, *self.run_options, *words, *options]
        self.run(*args, image, "sleep", "300")

    def volumes(self, *names: str) -> set[str]:
        """Return the names of the volumes of containers."""
        return set(self.run("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", *names).split())

    def all_volumes(self) -> set[str]:
        """Return the names of all volumes."""
        return set(self.run("volume", "ls", "--quiet").split())

    def remove(self, *names: str) -> None:
        """Remove containers that may be gone already, with their volumes."""
        patience = ["--time", "0"] if self.program == "podman" else []
        for name in names:
            run_process([self.program, "rm", "--force", "--volumes", *patience, name])


class ProcessTable:
    """The witness for an engine that lists nothing: a container is there while a process of the host names it."""

    def __init__(self, runtime: hr.Runtime) -> None:
        self._runtime = runtime
        self._started: dict[str, Any] = {}
        self._directories: dict[str, str] = {}

    def containers(self, *filters: str) -> list[str]:
        """Return the names of all containers."""
        assert filters in ((), (f"label={LABEL}",))
        found = [re.search(r"--hostname (hyperruntime-\S+)", " ".join(_cmdline(p))) for p in self._processes()]
        return sorted({match[1] for match in found if match})

    def start(self, image: str, name: str, labels: Mapping[str, str], *options: str) -> None:
        """Start a container past the library's ownership, with any labels."""
        assert not options
        directory = self._directories[name] = tempfile.mkdtemp(prefix=f"{name}-")
        launch = Launch(
            spec=hr.ContainerSpec(image=image),
            name=name,
            labels=labels,
            exchange=hr.Mount(source=directory, target="/run/hyperruntime"),
            private_dir=directory,
        )
        self._started[name] = self._runtime._driver.launch(launch)

    def remove(self, *names: str) -> None:
        """Kill what names a container."""
        named = [p for p in self._processes() if any(name in word for word in _cmdline(p) for name in names)]
        for process in [q for p in named for q in (p, *p.children(recursive=True))]:  # parents first
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for name in names:
            if name in self._started:
                live = self._started.pop(name)
                live.remove()
                live.shell.close()
                live.shell.close_output()
            shutil.rmtree(self._directories.pop(name, ""), ignore_errors=True)

    def _processes(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if p.is_running() and _cmdline(p)]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.uids().real == os.getuid() else []
    except psutil.Error:
        return []


@pytest.fixture(scope="session")
def engine_command(runtime_name: str, runtime: hr.Runtime) -> EngineCommand | ProcessTable:
    """The command line of the engine under test."""
    if runtime_name not in ("podman", "docker"):
        return ProcessTable(runtime)
    return podman_command(runtime) if runtime_name == "podman" else EngineCommand(runtime_name)


def podman_command(runtime: hr.Runtime) -> EngineCommand:
    """Return Podman's command line, with the options that the driver found to be needed here."""
    from hyperruntime_podman.args import base_args
    from hyperruntime_podman.driver import PodmanDriver

    driver = runtime._driver
    assert isinstance(driver, PodmanDriver)
    settings = driver._settings()
    limits = {"nofile": settings.nofile, "nproc": settings.nproc} if settings.nofile else {}
    ulimits = [word for name, value in limits.items() for word in ("--ulimit", f"{name}={value}:{value}")]
    return EngineCommand("podman", options=tuple(base_args(settings)[1:]), run_options=tuple(ulimits))


@pytest.fixture
def run_labelled(engine_command: EngineCommand) -> Iterator[Callable[..., str]]:
    """Start containers past the library, with an owner's labels; whatever a test does, they are removed."""
    names: list[str] = []

    def run(image: str, labels: Mapping[str, str], *options: str) -> str:
        name = f"hyperruntime-test-{os.getpid()}-{len(names)}"
        names.append(name)
        engine_command.start(image, name, labels, *options)
        return name

    yield run
    engine_command.remove(*names)


@pytest.fixture(scope="session")
def base_image(runtime: hr.Runtime) -> str:
    """The base image (dash as /bin/sh), made from Debian packages when it is missing."""
    return runtime.images.ensure("base")


@pytest.fixture(scope="session")
def busybox_image(runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
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
        try:
            runtime.images._images.load_rootfs(tar, reference)
        except UnsupportedOptionError:
            return base_image  # an engine with one image
    return reference


@pytest.fixture(scope="session")
def bash_image(runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image with bash as /bin/sh, built from a Containerfile."""
    reference = f"{PREFIX}bash:latest"
    folder = tmp_path_factory.mktemp("bash image")
    (folder / "Containerfile").write_text(f"FROM {base_image}\nRUN ln -sf bash /bin/sh\n")
    try:
        return runtime.images.build(reference, containerfile=folder / "Containerfile")
    except UnsupportedOptionError:
        return base_image  # an engine with one image


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
def has_users(runtime: hr.Runtime, container: hr.Container) -> bool:
    """Whether an exec can run as another user; where it cannot, that is refused by name."""
    if not runtime.info.users:
        with pytest.raises(UnsupportedOptionError, match="user"):
            container.exec(["true"], user="nobody")
        with pytest.raises(UnsupportedOptionError, match="user"):
            runtime.container(attrs.evolve(container.spec, user="65534:65534"))
    return runtime.info.users


@pytest.fixture
def processes(container: hr.Container) -> Callable[[], list[str]]:
    """The command lines of what runs in ``container`` beside the library's own shells."""

    def listed() -> list[str]:
        listed = container.exec(["ps", "-axo", "stat=,args="]).stdout.decode().splitlines()
        parted = (line.split(maxsplit=1) for line in listed)
        lines = [args for state, args in parted if not state.startswith("Z")]  # dead, and soon reaped
        own = ("/run/podman-init", "/sbin/docker-init", "/bin/sh", "ps -axo", "[sh]", "appinit", "bwrap ")
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
