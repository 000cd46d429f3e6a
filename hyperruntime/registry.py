"""Find plugins by entry point, or by the code that a user names; the only module that uses
stevedore.

A plugin is loaded only when it is requested by name, so a broken plugin does not affect the others.
stevedore is loaded when plugins are looked up: ``hyperrun status`` imports this module and looks up
none.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from hyperruntime.concurrency.exhaustion import exhausted
from hyperruntime.errors import (
    DomainNotFoundError,
    DriverLoadError,
    DriverNotFoundError,
    HyperRuntimeError,
    SpecError,
    name_hint,
    unknown_name,
)

if TYPE_CHECKING:
    from hyperruntime.domain import DomainBase

T = TypeVar("T")
RUNTIMES = "hyperruntime.runtimes"
DOMAINS = "hyperruntime.domains"
EXECUTORS = "hyperruntime.executors"
ENVIRONMENTS = "hyperruntime.environments"
TRAINERS = "hyperruntime.trainers"
AGENTS = "hyperruntime.agents"
SERVERS = "hyperruntime.servers"
LAUNCHERS = "hyperruntime.launchers"
SELECTION = "hyperruntime.selection"
LOGGERS = "hyperruntime.loggers"
OURS = "hyperruntime"  # the distribution
_CODE_FILE = re.compile(r"[^:]+\.py:[A-Za-z_]\w*")
_DOMAIN_MEMBERS = (
    "name description splits image needs_gpu agent protected_paths task_timeout_s tasks score report "
    "picture"
).split()
AUTO_ORDER = ("podman", "apptainer", "docker")


@attrs.frozen(kw_only=True)
class Interface:
    """The versions of one interface; docs/versions.md says when they change.

    Attributes:
        seam: the kind of plugin that implements it, as messages name it.
        version: the version in this release.
        oldest: the oldest version that this release supports.
    """

    seam: str
    version: int
    oldest: int = 1


INTERFACES = {
    RUNTIMES: Interface(seam="driver", version=1),
    DOMAINS: Interface(seam="domain", version=1),
    ENVIRONMENTS: Interface(seam="environment", version=1),
    EXECUTORS: Interface(seam="executor", version=1),
    TRAINERS: Interface(seam="trainer", version=1),
    SELECTION: Interface(seam="selection rule", version=1),
}


@attrs.frozen(kw_only=True)
class Plugin:
    """One entry point.

    Attributes:
        name: the entry point's name.
        group: the entry point's group.
        load: imports and returns the object; may raise any exception.
    """

    name: str
    group: str
    load: Callable[[], Any]

    @property
    def source(self) -> str:
        """Name of the distribution that publishes it; read from the metadata of all installed
        distributions.
        """
        points = entry_points(group=self.group, name=self.name)
        names = [point.dist.name for point in points if point.dist is not None]
        return names[-1] if names else "unknown"  # of two with one name, the last is loaded


def plugins(group: str) -> dict[str, Plugin]:
    """Return the entry points of a group by name, without importing any."""
    from stevedore import ExtensionManager

    # A normal ExtensionManager imports every plugin of its group; this one only lists them.
    manager: ExtensionManager[Any] = ExtensionManager.make_test_instance([], namespace=group)
    # from stevedore's cache, which does not know the distributions
    points = manager.list_entry_points()
    return {p.name: Plugin(name=p.name, group=group, load=p.load) for p in points}


def load_driver(name: str) -> Any:  # noqa: ANN401 - a Driver; core cannot name the type before it is loaded
    """Return a driver by name.

    Raises:
        DriverNotFoundError: no installed driver has this name.
        DriverLoadError: the driver is installed but cannot be loaded or created.
    """
    made = _load(RUNTIMES, name, DriverNotFoundError)
    with blaming(RUNTIMES, name):
        return made()


def load_domain(reference: str) -> DomainBase:
    """Return a domain by ``NAME`` or ``NAME:ARGUMENT``; it never loads a file, see
    :func:`load_domain_file`.

    Raises:
        DomainNotFoundError: no installed domain has this name.
        DriverLoadError: the domain is installed but cannot be loaded.
        SpecError: the argument is missing, not allowed or invalid.
    """
    if is_code_file(reference):
        allowed = (
            "the name of an installed domain; code of a file is loaded only if a user names it "
            "with --domains"
        )
        raise SpecError("domains", reference, allowed)
    return _completed_domain(_made(DOMAINS, reference, "domains", DomainNotFoundError))


def _made(
    group: str,
    reference: str,
    option: str,
    missing: Callable[[str, list[str]], Exception],
) -> Any:  # noqa: ANN401 - of any class
    """Return the object of a plug-in that is made by ``NAME`` or ``NAME:ARGUMENT``.

    Args:
        group: entry-point group of the plug-in.
        reference: its name, perhaps with an argument.
        option: the option that names it, for messages.
        missing: makes the error about an unknown name, from the name and the known ones.
    """
    name, colon, argument = reference.partition(":")
    made = _load(group, name, missing)
    with blaming(group, name):
        given = (argument,) if colon else ()
        try:
            inspect.signature(made).bind(*given)
        except TypeError:
            allowed = (
                f"the {INTERFACES[group].seam} {name!r} "
                f"{'takes no argument' if colon else f'needs an argument: {name}:ARGUMENT'}"
            )
            raise SpecError(option, reference, allowed) from None
        return made(*given)


def is_code_file(reference: str) -> bool:
    """Return whether a reference of a domain or a selection rule is ``PATH/FILE.py:CLASS``."""
    return _CODE_FILE.fullmatch(reference) is not None


def load_domain_file(reference: str) -> DomainBase:
    """Return a domain by ``PATH/FILE.py:CLASS``; this runs the file. Only for references that this
    user gave.

    Raises:
        DriverLoadError: the file is broken.
        SpecError: the file or the class does not exist, or the class is not a domain.
    """
    with blaming_code("domain", reference):
        made = load_code(reference, "domains", "NAME, NAME:ARGUMENT or PATH/FILE.py:CLASS")
        check_interface(DOMAINS, made, f"the domain {reference!r}")
        domain = made()
    if missing := [name for name in _DOMAIN_MEMBERS if not hasattr(domain, name)]:
        why = (
            f"a class with all members of hyperruntime.domain.Domain; it lacks {', '.join(missing)}"
        )
        raise SpecError("domains", reference, why)
    return _completed_domain(domain)


def _completed_domain(domain: object) -> DomainBase:
    from hyperruntime.domain import DomainBase  # not needed to list plugins

    return completed(domain, DomainBase)


def completed(plugin: Any, base: Callable[[], T]) -> T:  # noqa: ANN401 - of any class
    """Return an object with all members of a base class: the object itself if it is of that class,
    else another one, whose members are those of the object, and of the base where it has none.

    Args:
        plugin: the object, of any class.
        base: the base class; it is made without arguments.
    """
    kind: Any = base
    if isinstance(plugin, kind):
        return cast(T, plugin)

    def member(name: str) -> property:
        return property(lambda _: getattr(plugin, name))

    known = [name for name in dir(plugin) if not name.startswith("_")]
    return cast(T, type(type(plugin).__name__, (kind,), {one: member(one) for one in known})())


def load_selection_rule(reference: str) -> Any:  # noqa: ANN401 - a loop.run_files.selection.SelectionRule
    """Return a selection rule by ``NAME``, ``NAME:ARGUMENT`` or ``PATH/FILE.py:CLASS``; the last
    form runs the file.

    Raises:
        SpecError: no installed rule has this name, the file or the class does not exist, or the
            argument is missing, not allowed or invalid.
        DriverLoadError: the rule cannot be loaded.
    """
    option = "parent_selection"
    if is_code_file(reference):
        with blaming_code("selection rule", reference):
            made = load_code(reference, option, "NAME, NAME:ARGUMENT or PATH/FILE.py:CLASS")
            check_interface(SELECTION, made, f"the selection rule {reference!r}")
            rule = made()
        if not callable(rule):
            raise SpecError(option, reference, "a class whose objects can be called")
        return rule
    return _made(
        SELECTION,
        reference,
        option,
        lambda n, known: SpecError(option, reference, name_hint(n, known)),
    )


def load_executor(name: str) -> Any:  # noqa: ANN401 - a callable that returns a concurrent.futures.Executor
    """Return an executor factory; it is called with the number of workers.

    Raises:
        HyperRuntimeError: no installed executor has this name.
        DriverLoadError: the executor is installed but cannot be loaded.
    """
    return _load(
        EXECUTORS, name, lambda n, known: HyperRuntimeError(unknown_name("executor", n, known))
    )


def load_environment_class(name: str) -> Any:  # noqa: ANN401 - makes a rollout.environment.Environment
    """Return the factory of a rollout environment; it is called with the user's options.

    Raises:
        SpecError: no installed environment has this name.
        DriverLoadError: the environment is installed but cannot be loaded.
    """
    return _load(
        ENVIRONMENTS, name, lambda n, known: SpecError("environment", n, name_hint(n, known))
    )


def load_trainer_class(name: str) -> Any:  # noqa: ANN401 - makes a trainers.Trainer
    """Return the factory of a trainer; it is called with the user's options.

    Raises:
        SpecError: no installed trainer has this name.
        DriverLoadError: the trainer is installed but cannot be loaded.
    """
    return _load(TRAINERS, name, lambda n, known: SpecError("trainer", n, name_hint(n, known)))


def load_server(name: str) -> Any:  # noqa: ANN401 - a coroutine function of a pool, as in hyperruntime_mcp
    """Return the function that serves the slots of a pool to clients of one protocol.

    Raises:
        SpecError: no installed server has this name.
        ExtraMissingError: the package of its protocol is not installed.
        DriverLoadError: the server is installed but cannot be loaded.
    """
    return _load(SERVERS, name, lambda n, known: SpecError("server", n, name_hint(n, known)))


def load_launcher(name: str) -> Any:  # noqa: ANN401 - makes a cluster.launchers.launcher.Launcher
    """Return the function that makes the launcher of a batch system.

    Raises:
        SpecError: no installed launcher has this name.
        DriverLoadError: the launcher is installed but cannot be loaded.
    """
    return _load(LAUNCHERS, name, lambda n, known: SpecError("provider", n, name_hint(n, known)))


def load_logger(reference: str) -> Any:  # noqa: ANN401 - a loop.loggers.logger.RunLogger
    """Return a logger by ``NAME`` or ``NAME:ARGUMENT``.

    Raises:
        SpecError: no installed logger has this name.
        ExtraMissingError: the package of its program is not installed.
        DriverLoadError: the logger is installed but cannot be loaded or made.
    """
    name, _, argument = reference.partition(":")
    made = _load(LOGGERS, name, lambda n, known: SpecError("logger", n, name_hint(n, known)))
    with blaming(LOGGERS, name):
        return made(argument)


def load_agent_folder(name: str) -> Path:
    """Return the folder of an installed agent template.

    Raises:
        KeyError: no installed template has this name.
        DriverLoadError: the template cannot be loaded, or is not the path of a folder.
    """
    folder = _load(AGENTS, name, lambda n, _: KeyError(n))
    with blaming(AGENTS, name):
        path = Path(folder)
        if not path.is_dir():
            raise NotADirectoryError(f"{str(path)!r} is not a folder with an agent's files")
        return path


def auto_order() -> list[str]:
    """Return the drivers' names in the order of ``auto``: ``AUTO_ORDER``, other packages, our other
    drivers.
    """
    known = plugins(RUNTIMES)
    rest = sorted((known[name].source == OURS, name) for name in known if name not in AUTO_ORDER)
    return [*(name for name in AUTO_ORDER if name in known), *(name for _, name in rest)]


def _load(group: str, name: str, missing: Callable[[str, list[str]], Exception]) -> Any:  # noqa: ANN401
    known = plugins(group)
    if name not in known:
        raise missing(name, list(known))
    with blaming(group, name):
        found = known[name].load()
        check_interface(group, found, repr(name), known[name])
        return found


def package_version(name: str) -> str:
    """Return the version of an installed distribution, or "" if there is none of this name."""
    try:
        return version(name)
    except (PackageNotFoundError, ValueError):  # an empty name is a ValueError
        return ""


def check_interface(group: str, plugin: object, whose: str, point: Plugin | None = None) -> None:
    """Check the interface version that a plugin declares; one without ``interface_version`` has
    version 1.

    Args:
        group: entry-point group of the plugin; a group without interface versions needs none.
        plugin: what the entry point names: a class, a function or another object.
        whose: name of the plugin, for the message.
        point: its entry point, if it has one.

    Raises:
        DriverLoadError: this release does not support the version, or it is not a positive integer.
    """
    interface = INTERFACES.get(group)
    declared = getattr(plugin, "interface_version", 1)
    if interface is None or (
        type(declared) is int and interface.oldest <= declared <= interface.version
    ):
        return
    ours = f"version {interface.version}"
    if interface.oldest < interface.version:
        ours = f"versions {interface.oldest} to {interface.version}"
    if type(declared) is not int or declared < 1:
        what = f"declares interface_version = {declared!r}"
        step = "it must be a positive integer; correct that package"
    else:
        what = f"is written for version {declared} of the {interface.seam} interface"
        newer = declared > interface.version
        step = (
            "upgrade hyperruntime, or install an older version of that package"
            if newer
            else "upgrade that package"
        )
    source = "" if point is None else point.source
    theirs = (
        f"{whose} of package {source!r} {package_version(source)}".rstrip() if source else whose
    )
    mine = f"{OURS} {package_version(OURS)}".rstrip()
    raise DriverLoadError(f"{theirs} {what}, but {mine} supports {ours}: {step}")


@contextmanager
def blaming(group: str, name: str) -> Iterator[None]:
    """Convert a foreign exception of a plugin's code into an error that names the plugin's package.

    Args:
        group: entry-point group of the plugin.
        name: name of its entry point.

    Raises:
        DriverLoadError: the block raised an exception that is not a HyperRuntimeError, or
            SystemExit; an exception about missing memory, threads or processes is raised unchanged.
    """
    try:
        yield
    except HyperRuntimeError:
        raise
    except (Exception, SystemExit) as error:
        if exhausted(error):
            raise  # not the plugin's fault
        what = " ".join(f"{type(error).__name__}: {error}".split())
        source = plugins(group)[name].source
        raise DriverLoadError(
            f"{name!r} of package {source!r} is broken: {what}; reinstall or remove that package"
        ) from error


def load_code(reference: str, word: str, forms: str, *, code: str = "class") -> Callable[..., Any]:
    """Return a class or function by ``MODULE:NAME`` or ``PATH/FILE.py:NAME``; the module is
    imported.

    Args:
        reference: its name.
        word: what it is, such as ``environment``, for messages.
        forms: the allowed forms of the reference, for messages.
        code: ``class`` or ``function``.

    Raises:
        SpecError: the module, the file or the name does not exist.
    """
    where, _, name = reference.rpartition(":")
    load = _module_of_file if where.endswith(".py") else _module
    module = load(reference, where, word, forms)
    made = getattr(module, name, None)
    if not callable(made):
        is_one = inspect.isclass if code == "class" else inspect.isfunction
        there = [
            key for key, value in vars(module).items() if is_one(value) and not key.startswith("_")
        ]
        raise SpecError(
            word, reference, f"{where} has no {code} {name!r}; {name_hint(name, there)}"
        )
    found: Callable[..., Any] = made
    return found


def _module(reference: str, name: str, word: str, forms: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(word, reference, forms)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        why = f"module {error.name!r} does not exist; install it, or give the path of its file"
        raise SpecError(word, reference, why) from None


def _module_of_file(reference: str, path: str, word: str, forms: str) -> ModuleType:
    where = os.path.realpath(path)
    if not os.path.isfile(where):
        raise SpecError(word, reference, f"file {where!r} does not exist")
    name = f"hyperruntime_{word}_" + "".join(c if c.isalnum() else "_" for c in where)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise SpecError(word, reference, forms)
    # attrs and pickle look up the module there
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def blaming_code(word: str, reference: str) -> Iterator[None]:
    """Convert any other exception of the user's code into a ``DriverLoadError`` that names the
    code.
    """
    try:
        yield
    except HyperRuntimeError:
        raise
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DriverLoadError(f"the {word} {reference!r} is broken: {what}") from error
