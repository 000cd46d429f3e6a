"""Fixtures of the engine tests. A missing engine or image is a failure, never a skip."""

from __future__ import annotations

import asyncio
import gc
import inspect
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
from xdist.scheduler import LoadScopeScheduling

import hyperruntime as hr
from hyperruntime import logs
from hyperruntime.driver import Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.owner import LABEL
from hyperruntime.host.process import run_process

# jsonschema would make 39 parsers for a format of addresses that no test checks, which takes
# seconds in each process.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

PREFIX = "localhost/hyperruntime-test/"
SHELLS = ("dash", "busybox", "bash")

# Each run has the same examples and no deadline; `few` is for `make test`, and `other` draws other
# examples.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.register_profile("few", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("other", deadline=None, print_blob=True)
hypothesis.settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the driver under test."""
    default = os.environ.get("HYPERRUNTIME_TEST_RUNTIME", "podman")
    parser.addoption(
        "--runtime", metavar="NAME", default=default, help="driver that the engine tests use"
    )
    parser.addoption(
        "--one-shell", action="store_true", help="skip the images whose shell is not dash"
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop, unless a plug-in does so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_configure() -> None:
    """Restore the handler of SIGINT, which a shell ignores for background processes: the tests send
    SIGINT.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives as long as the tests do."""
    gc.collect()
    gc.freeze()


class ModuleScheduling(LoadScopeScheduling):
    """Runs the tests of a module in one process, because they share containers; so with each group
    of modules.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return next(
            (name for name, words in TOGETHER.items() if any(word in module for word in words)),
            module,
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    """Let pytest-xdist distribute whole modules."""
    return ModuleScheduling(config, log)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Reset structlog after each test, because commands configure it."""
    yield
    logs.forget_configuration()
    if structlog := sys.modules.get("structlog"):
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def runtime_name(request: pytest.FixtureRequest) -> str:
    """Return the driver's name: ``--runtime``, HYPERRUNTIME_TEST_RUNTIME, or podman."""
    return str(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def runtime(runtime_name: str) -> Iterator[hr.Runtime]:
    """Yield the runtime under test, open for the whole session."""
    with hr.open_runtime(runtime_name) as opened:
        yield opened


ENGINES = ("podman", "docker", "apptainer", "bubblewrap", "charliecloud")
# Modules that never run beside each other: they prune, or look at what all owners of a user have.
TOGETHER = {
    "owners": (
        "ownership",
        "test_podman_probe",
        "test_docker",
        "test_apptainer.py",
        "e2e/test_cli",
        "e2e/test_cluster",
        "test_rollout_nodes",
    ),
    "images": ("test_images", "test_image_cli", "test_definitions"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the contract tests of other engines than the one under test: modules
    ``test_ENGINE...``.

    With ``--one-shell``, also deselect the tests with other shells than dash; another engine runs
    them.
    """
    chosen = config.getoption("--runtime")
    others = tuple(f"test_{engine}" for engine in ENGINES if engine != chosen)
    contract = [item for item in items if item.path.parent.name == "contract"]
    foreign = [item for item in contract if item.path.stem.startswith(others)]
    if config.getoption("--one-shell"):
        foreign += [
            item for item in contract if item not in foreign and _parameters(item) & set(SHELLS[1:])
        ]
    if foreign:
        config.hook.pytest_deselected(items=foreign)
        items[:] = [item for item in items if item not in foreign]


def _parameters(item: pytest.Item) -> set[object]:
    """Return the string parameters of a test."""
    spec = getattr(item, "callspec", None)
    return (
        {value for value in spec.params.values() if isinstance(value, str)}
        if spec is not None
        else set()
    )


@attrs.frozen
class EngineCommand:
    """The engine's own command line, as an independent witness; ``podman`` and ``docker`` take the
    same arguments.

    Attributes:
        program: its name.
        options: the options that each of its commands needs on this machine.
        run_options: the options that ``run`` needs on this machine.
    """

    program: str
    options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()

    def run(self, *args: str) -> str:
        """Run a command, which must succeed; return its output."""
        result = run_process([self.program, *self.options, *args])
        assert result.exit_code == 0, result.stderr
        return result.stdout.decode()

    def containers(self, *filters: str) -> list[str]:
        """Return the names of all containers, running or not."""
        words = [word for text in filters for word in ("--filter", text)]
        return self.run("ps", "--all", "--format", "{{.Names}}", *words).split()

    def start(self, image: str, name: str, labels: Mapping[str, str], *options: str) -> None:
        """Start a container that sleeps, without the library."""
        words = [
            word for label, value in labels.items() for word in ("--label", f"{label}={value}")
        ]
        args = [
            "run",
            "--detach",
            "--network",
            "none",
            "--name",
            name,
            *self.run_options,
            *words,
            *options,
        ]
        self.run(*args, image, "sleep", "300")

    def commands(self, name: str) -> list[str]:
        """Return the command lines of the processes in a container."""
        if self.program == "podman":
            return [line.rstrip() for line in self.run("top", name, "args").splitlines()[1:]]
        return [
            line.split(maxsplit=1)[1]
            for line in self.run("top", name, "-o", "pid,args").splitlines()[1:]
        ]

    def init_pid(self, name: str) -> int:
        """Return the pid on this machine of the process that is PID 1 in a container."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", name))

    def volumes(self, *names: str) -> set[str]:
        """Return the names of the volumes of containers."""
        return set(
            self.run("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", *names).split()
        )

    def all_volumes(self) -> set[str]:
        """Return the names of all volumes."""
        return set(self.run("volume", "ls", "--quiet").split())

    def remove(self, *names: str) -> None:
        """Remove containers, which may be gone already, with their volumes."""
        patience = ["--time", "0"] if self.program == "podman" else []
        for name in names:
            run_process([self.program, "rm", "--force", "--volumes", *patience, name])


class ProcessTable:
    """The witness for an engine that lists no containers: one exists while a process of the host
    names it.
    """

    def __init__(self, runtime: hr.Runtime) -> None:
        self._runtime = runtime
        self._started: dict[str, Any] = {}
        self._directories: dict[str, str] = {}

    def containers(self, *filters: str) -> list[str]:
        """Return the names of all containers."""
        ids = [text.removeprefix("id=") for text in filters if text.startswith("id=")]
        assert ids or filters in ((), (f"label={LABEL}",))
        found = [
            re.search(r"hostname\W+(hyperruntime-[\w-]+)", " ".join(_cmdline(p)))
            for p in self._processes()
        ]
        return sorted({match[1] for match in found if match and (not ids or match[1] in ids)})

    def start(self, image: str, name: str, labels: Mapping[str, str], *options: str) -> None:
        """Start a container with any labels, without the library's ownership."""
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
        """Kill the processes that name the containers, with their children."""
        for process in self._of(*names):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for name in names:
            if name in self._started:
                live = self._started.pop(name)
                live.remove()
                live.shell.close()
                live.shell.close_output()
            shutil.rmtree(self._directories.pop(name, ""), ignore_errors=True)

    def commands(self, name: str) -> list[str]:
        """Return the command lines of the processes that name a container, and of their
        children.
        """
        return [" ".join(_cmdline(process)) for process in self._of(name)]

    def init_pid(self, name: str) -> int:
        """Return the pid on this machine of the process that is PID 1 in a container: of the
        innermost namespace.
        """
        status = [Path(f"/proc/{p.pid}/status").read_text() for p in self._of(name)]
        pids = [text.partition("NSpid:")[2].splitlines()[0].split() for text in status]
        return int(max((one for one in pids if len(one) > 1 and one[-1] == "1"), key=len)[0])

    def _of(self, *names: str) -> list[psutil.Process]:
        """Return the processes that name containers, and their children; parents first."""
        named = [
            p
            for p in self._processes()
            if any(name in word for word in _cmdline(p) for name in names)
        ]
        return [q for p in named for q in (p, *p.children(recursive=True))]

    def _processes(self) -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if p.is_running() and _cmdline(p)]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.uids().real == os.getuid() else []
    except psutil.Error:
        return []


@pytest.fixture(scope="session")
def engine_command(runtime_name: str, runtime: hr.Runtime) -> EngineCommand | ProcessTable:
    """Return the witness for the engine under test."""
    if runtime_name not in ("podman", "docker"):
        return ProcessTable(runtime)
    return podman_command(runtime) if runtime_name == "podman" else EngineCommand(runtime_name)


def podman_command(runtime: hr.Runtime) -> EngineCommand:
    """Return Podman's command line with the options that the driver found necessary on this
    machine.
    """
    from hyperruntime_podman.args import own_args
    from hyperruntime_podman.driver import PodmanDriver

    driver = runtime._driver
    assert isinstance(driver, PodmanDriver)
    settings = driver._probe.get().settings
    limits = {"nofile": settings.nofile, "nproc": settings.nproc} if settings.nofile else {}
    ulimits = [
        word for name, value in limits.items() for word in ("--ulimit", f"{name}={value}:{value}")
    ]
    runtime_args = ("--runtime", settings.oci_runtime) if settings.oci_runtime else ()
    return EngineCommand(
        "podman", options=(*own_args(settings), *runtime_args), run_options=tuple(ulimits)
    )


@pytest.fixture
def run_labelled(engine_command: EngineCommand) -> Iterator[Callable[..., str]]:
    """Yield a function that starts containers with an owner's labels, without the library; remove
    them afterwards.
    """
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
    """Return the base image (dash as /bin/sh), built from Debian packages if it is missing."""
    return runtime.images.ensure("base")


@pytest.fixture(scope="session")
def busybox_image(
    runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return an image of only a static busybox (ash as /bin/sh)."""
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
            return base_image  # the engine supports only one image
    return reference


@pytest.fixture(scope="session")
def bash_image(
    runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the base image with bash as /bin/sh, built from a Containerfile."""
    reference = f"{PREFIX}bash:latest"
    folder = tmp_path_factory.mktemp("bash image")
    (folder / "Containerfile").write_text(f"FROM {base_image}\nRUN ln -sf bash /bin/sh\n")
    try:
        return runtime.images.build(reference, containerfile=folder / "Containerfile")
    except UnsupportedOptionError:
        return base_image  # the engine supports only one image


@pytest.fixture(scope="session")
def images(base_image: str, busybox_image: str, bash_image: str) -> dict[str, str]:
    """Return one image for each shell that the supervisor must support."""
    return {"dash": base_image, "busybox": busybox_image, "bash": bash_image}


@pytest.fixture(scope="module", params=SHELLS)
def shell_container(
    request: pytest.FixtureRequest, runtime: hr.Runtime, images: dict[str, str]
) -> Iterator[hr.Container]:
    """Yield a container for each shell."""
    with runtime.container(hr.ContainerSpec(image=images[request.param])) as container:
        yield container


@pytest.fixture(scope="module")
def container(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    """Yield a container of the base image."""
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        yield started


@pytest.fixture
def has_users(runtime: hr.Runtime, container: hr.Container) -> bool:
    """Return whether an exec can run as another user; if not, check that the option is refused by
    name.
    """
    if not runtime.info.users:
        with pytest.raises(UnsupportedOptionError, match="user"):
            container.exec(["true"], user="nobody")
        with pytest.raises(UnsupportedOptionError, match="user"):
            runtime.container(attrs.evolve(container.spec, user="65534:65534"))
    return runtime.info.users


@pytest.fixture
def processes(container: hr.Container) -> Callable[[], list[str]]:
    """Return a function that lists the command lines in ``container``, without the library's own
    shells.
    """

    def listed() -> list[str]:
        listed = container.exec(["ps", "-axo", "stat=,args="]).stdout.decode().splitlines()
        parted = (line.split(maxsplit=1) for line in listed)
        # zombies, which are reaped soon
        lines = [args for state, args in parted if not state.startswith("Z")]
        own = (
            "/run/podman-init",
            "/sbin/docker-init",
            "/bin/sh",
            "ps -axo",
            "[sh]",
            "appinit",
            "bwrap ",
        )
        return [line for line in lines if not line.startswith(own) and "lane.sh" not in line]

    return listed


@pytest.fixture
def install_plugin(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return a function that installs a package of tests/plugins, offline, and returns an
    environment that finds it.
    """

    def install(name: str) -> dict[str, str]:
        source = shutil.copytree(
            Path(__file__).parent / "plugins" / name, tmp_path / f"{name}-source"
        )  # pip writes there
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
        ]
        done = run_process([*pip, "--target", str(tmp_path / name), str(source)])
        assert done.exit_code == 0, done.stderr.decode()
        return {**os.environ, "PYTHONPATH": str(tmp_path / name)}

    return install


@pytest.fixture
def odd_path(tmp_path: Path) -> Path:
    """Return a directory whose name has a space and two kinds of quotes."""
    path = tmp_path / "a 'dir\""
    path.mkdir()
    return path


def is_root() -> bool:
    """Return whether the tests run as root."""
    return os.geteuid() == 0
