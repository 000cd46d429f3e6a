"""What ``lint-imports`` does not check of the folders: sizes, names in texts, public names."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from hyperruntime.host import process

ROOT = Path(__file__).parents[2]
CORE = "hyperruntime"

DRIVERS = ("runtimes", "tests/plugins/runc")
PLUGINS = ("runtimes", "domains", "environments", "trainers", "integrations")
MOST_AT_THE_TOP, MOST_IN_A_FOLDER = 16, 20
# A node server starts services of later folders, which it has by name.
BY_NAME = "hyperruntime.cluster.node_services"
_NAMED = re.compile(r"[\"']hyperruntime(\.\w+)+:\w+[\"']")
_NOT_OURS = (
    "hyperruntime/agents/llm/",
    "hyperruntime/agents/mutator/",
    "hyperruntime/agents/solver/",
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


def test_lint_imports_checks_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    inits = [path for name in PLUGINS for path in (ROOT / name).glob("hyper*/__init__.py")]
    packages = {path.parent.name for path in inits}
    assert set(config["root_packages"]) == {CORE, *packages}
    *_, forbidden, places = config["contracts"]
    assert set(forbidden["forbidden_modules"]) == packages
    assert packages <= set(re.split(r"[\s|:]+", " ".join(places["layers"])))


def test_only_a_node_server_names_modules_in_texts() -> None:
    """``lint-imports`` sees the other imports."""
    found = {name_of(path) for path in sources(CORE) if _NAMED.search((ROOT / path).read_text())}
    assert found == {BY_NAME}


@pytest.mark.parametrize("folder", DRIVERS)
def test_drivers_use_only_the_public_names_of_the_module_of_processes(folder: str) -> None:
    module, used = process.__name__, set[str]()
    for path in sources(folder):
        text = (ROOT / path).read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                used |= {alias.name for alias in node.names}
        if f"import {module.rpartition('.')[2]}\n" in text:
            used |= set(re.findall(r"(?<![\w.])process\.([A-Za-z]\w+)", text))
    assert used
    assert used <= set(process.__all__)


def test_folders_stay_small() -> None:
    assert (
        len({path.name for path in (ROOT / CORE).glob("*.py")} - {"__main__.py"}) <= MOST_AT_THE_TOP
    )
    sizes = {
        folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in sources(CORE)}
    }
    assert not {str(folder): size for folder, size in sizes.items() if size > MOST_IN_A_FOLDER}


def test_the_folders_of_unit_tests_are_folders_of_the_product() -> None:
    unit = ROOT / "tests" / "unit"
    found = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")} - {Path()}
    assert len(found) > 30
    assert [
        str(one)
        for one in sorted(found)
        if not (ROOT / CORE / one).is_dir() and str(one) not in PLUGINS
    ] == []
