"""The order of imports between folders, and the size of a folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hyperruntime.cluster.node_services import SERVICES
from hyperruntime.host import process

ROOT = Path(__file__).parents[2]
CORE = "hyperruntime"

# A folder, or a module at the top of its package, may import only entries that stand before it.
ORDER = (
    "pickling", "errors", "units", "json_values", "option_fields", "logs", "concurrency", "wire",
    "spec", "run_as", "attached_shell", "driver", "datasets", "domain", "registry",
    "agents", "host", "storage", "reclaim", "gpu", "images.packages", "images",
    "exec", "exec.persistent", "exec.spawn", "transfer", "ports", "git", "pool.values", "sandbox",
    "container", "runtime",
    "gateway.config", "secrets", "gateway.log", "gateway.request", "gateway.answer", "gateway",
    "pool.slots", "pool.tools", "pool",
    "rollout.run_files", "rollout.agent", "rollout.models", "rollout.training_data", "rollout", "rollout.run",
    "rollout.batch", "trainers",
    "loop.run_files", "loop.workbench", "loop.evaluation", "loop.generation", "loop.hyperagents", "loop.run", "loop",
    "cluster", "cluster.slots", "cluster.generations", "cluster.rollouts", "serve",
    "report", "report.page", "report.live", "adapters", "testing", "testing.conformance",
    "cli", "cli.machine", "cli.containers", "cli.loop", "cli.rollout", "cli.cluster",
)  # fmt: skip
# The packages beside the core, and for each the last entry of ``ORDER`` that it may import.
DRIVERS = ("runtimes", "tests/plugins/runc")
PLUGINS = {
    **dict.fromkeys(DRIVERS, "images"),
    "domains": "domain",
    "environments": "adapters",
    "trainers": "trainers",
}
PLUGINS["integrations"] = "adapters"
OUTSIDE = ("hyperruntime_", "hyperdomain_", "hyperenvironment_", "hypertrainer_")
MOST_AT_THE_TOP, MOST_IN_A_FOLDER = 16, 20
# A node server starts the services of later folders, which it has by name: the only exception to
# the order.
BY_NAME = "hyperruntime.cluster.node_services"
_NAMED = re.compile(r"hyperruntime(\.\w+)+:\w+")
_NOT_OURS = (
    "hyperruntime/agents/llm/",
    "hyperruntime/agents/mutator/",
    "/inside/",
    "/tasks/",
    "/exercises/",
)


def sources(folder: str) -> list[Path]:
    """Return the modules below a folder that run in this process."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not any(part in path.as_posix() for part in _NOT_OURS))


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the names that a module imports anywhere, also as ``module:Class`` in a text; not for
    type checking.
    """
    return frozenset(_imports(ast.parse((ROOT / path).read_text())))


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.Constant) and _NAMED.fullmatch(str(child.value)):
            yield str(child.value).partition(":")[0]
        yield from _imports(child)


def folder_of(module: str) -> str | None:
    """Return the entry of ``ORDER`` to which a name of the core belongs; None for the package
    itself.
    """
    parts = module.split(".")[1:]
    while parts and ".".join(parts) not in ORDER:
        parts.pop()
    return ".".join(parts) or None


def test_nothing_imports_a_later_folder() -> None:
    upwards = []
    for path in sources(CORE):
        own = folder_of(name_of(path))
        for name in imported(path):
            other = folder_of(name) if name.split(".")[0] == CORE else None
            if own and other and ORDER.index(other) > ORDER.index(own):
                upwards.append(f"{name_of(path)} imports {name}")
    assert not [each for each in upwards if not each.startswith(f"{BY_NAME} ")]


def test_the_core_imports_no_plugin() -> None:
    assert not [
        f"{name_of(path)} imports {name}"
        for path in sources(CORE)
        for name in imported(path)
        if name.startswith(OUTSIDE) and not name.startswith("hyperruntime_images")
    ]


@pytest.mark.parametrize(("folder", "last"), PLUGINS.items())
def test_a_plugin_imports_only_allowed_folders(folder: str, last: str) -> None:
    allowed = ORDER[: ORDER.index(last) + 1]
    for path in sources(folder):
        others = {folder_of(name) for name in imported(path) if name.split(".")[0] == CORE}
        assert others <= {*allowed, None}, name_of(path)


@pytest.mark.parametrize("folder", DRIVERS)
def test_drivers_use_only_the_public_names_of_the_module_of_processes(folder: str) -> None:
    module, used = process.__name__, set[str]()
    for path in sources(folder):
        used |= {
            name.removeprefix(f"{module}.")
            for name in imported(path)
            if name.startswith(f"{module}.")
        }
        if module in imported(path):
            used |= set(re.findall(r"(?<![\w.])process\.([A-Za-z]\w+)", (ROOT / path).read_text()))
    assert used
    assert used <= set(process.__all__)


def test_there_are_no_circular_imports() -> None:
    modules = {name_of(path): path for path in sources(CORE)}
    services = {name.partition(":")[0] for name in SERVICES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module in done:
            return
        for name in sorted(imported(modules[module])):
            found = name if name in modules else name.rpartition(".")[0]
            if module == BY_NAME and found in services:
                continue
            if found in modules and found != module and found != CORE:
                visit(found, (*above, module))
        done.add(module)

    for module in modules:
        visit(module, ())


def test_folders_stay_small() -> None:
    assert (
        len({path.name for path in (ROOT / CORE).glob("*.py")} - {"__main__.py"}) <= MOST_AT_THE_TOP
    )
    sizes = {
        folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in sources(CORE)}
    }
    assert not {str(folder): size for folder, size in sizes.items() if size > MOST_IN_A_FOLDER}


def test_each_folder_has_its_place_in_the_order() -> None:
    found = {
        path.parent.relative_to(ROOT / CORE).as_posix().replace("/", ".")
        for path in (ROOT / CORE).rglob("*.py")
    }
    assert {name for name in found if name != "." and name.partition(".")[0] != "agents"} <= set(
        ORDER
    )


def test_the_folders_of_unit_tests_are_folders_of_the_product() -> None:
    unit = ROOT / "tests" / "unit"
    found = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path()}
    assert len(found) > 30
    assert [
        str(one)
        for one in sorted(found)
        if not (ROOT / CORE / one).is_dir() and str(one) not in PLUGINS
    ] == []


@pytest.mark.parametrize(
    "folder", [name for name in ORDER if (ROOT / CORE / name.replace(".", "/")).is_dir()]
)
def test_each_folder_states_what_it_may_import(folder: str) -> None:
    text = (
        ast.get_docstring(
            ast.parse((ROOT / CORE / folder.replace(".", "/") / "__init__.py").read_text())
        )
        or ""
    )
    before = ORDER[ORDER.index(folder) - 1]
    assert (
        f"May import ``{before}`` and what stands before it in ``tests/unit/test_folders.py``."
        in " ".join(text.split())
    )
