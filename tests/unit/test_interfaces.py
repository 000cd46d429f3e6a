"""A plugin says for which version of its interface it was written; a version that is not supported
is a clear error.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import __version__, domain, driver, registry
from hyperruntime.errors import DriverLoadError
from hyperruntime.loop.run_files.selection import SelectionRule
from hyperruntime.registry import INTERFACES, RUNTIMES, Interface, check_interface
from hyperruntime.rollout import environment
from hyperruntime.rollout.loading import load_environment
from hyperruntime.trainers import Trainer
from hyperruntime.trainers.loading import load_trainer

RECORD = Path(__file__).with_name("interfaces.json")
PLUGINS = """
class Driver:
    name = "x"

class Domain: tasks = score = None
class Environment: pass
class Trainer: pass
class Rule: pass
def executor(workers): pass
"""
LOAD = """
import json
from hyperruntime import registry
loaders = {
    registry.RUNTIMES: registry.load_driver, registry.DOMAINS: registry.load_domain,
    registry.ENVIRONMENTS: registry.load_environment_class, registry.EXECUTORS: registry.load_executor,
    registry.TRAINERS: registry.load_trainer_class,
    registry.SELECTION: registry.load_selection_rule,
}
answers = {}
for group, load in loaders.items():
    for name in ("silent", "first", "tomorrow", "typo"):
        try:
            load(name)
            answers[f"{group} {name}"] = ""
        except Exception as error:
            answers[f"{group} {name}"] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


def publish(folder: Path, name: str, declared: str) -> None:
    """Write a package with a plugin of each kind; ``declared`` is their interface version, as
    Python text, or "".
    """
    lines = "".join(
        f"{one}.interface_version = {declared}\n"
        for one in ("Driver", "Domain", "Environment", "Trainer", "Rule")
    )
    lines += f"executor.interface_version = {declared}\n"
    (folder / f"plugins_{name}.py").write_text(PLUGINS + (lines if declared else ""))
    metadata = folder / f"plugins_{name}-3.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: plugins-{name}\nVersion: 3.1\n"
    )
    objects = dict(
        zip(
            INTERFACES,
            ("Driver", "Domain", "Environment", "executor", "Trainer", "Rule"),
            strict=True,
        )
    )
    points = "".join(
        f"[{group}]\n{name} = plugins_{name}:{made}\n" for group, made in objects.items()
    )
    (metadata / "entry_points.txt").write_text(points)


def test_plugins_of_an_unsupported_interface_version_are_refused_with_both_versions(
    tmp_path: Path,
) -> None:
    for name, declared in (("silent", ""), ("first", "1"), ("tomorrow", "2"), ("typo", "'1'")):
        publish(tmp_path, name, declared)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == 4 * len(INTERFACES)
    for group, interface in INTERFACES.items():
        assert answers[f"{group} silent"] == ""
        assert answers[f"{group} first"] == ""
        assert answers[f"{group} tomorrow"] == (
            "DriverLoadError: 'tomorrow' of package 'plugins-tomorrow' 3.1 is written for "
            f"version 2 of the {interface.seam} interface, but hyperruntime {__version__} "
            "supports version 1: upgrade hyperruntime, or install an older version of that "
            "package"
        )
        assert "declares interface_version = '1'" in answers[f"{group} typo"]
        assert "must be a positive integer" in answers[f"{group} typo"]


@pytest.mark.parametrize(
    ("declared", "step"), [(1, "upgrade that package"), (4, "upgrade hyperruntime, or install")]
)
def test_a_release_may_support_several_versions(
    monkeypatch: pytest.MonkeyPatch, declared: int, step: str
) -> None:
    monkeypatch.setitem(
        registry.INTERFACES, RUNTIMES, Interface(seam="driver", version=3, oldest=2)
    )
    for fine in (2, 3):
        check_interface(RUNTIMES, type("Fine", (), {"interface_version": fine}), "'mine'")
    with pytest.raises(
        DriverLoadError,
        match=rf"version {declared} of the driver.* supports versions 2 to 3: {step}",
    ):
        check_interface(RUNTIMES, type("Not", (), {"interface_version": declared}), "'mine'")


@pytest.mark.parametrize("load", [load_environment, load_trainer])
def test_a_class_in_a_file_is_checked_like_a_package(tmp_path: Path, load: Any) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    interface_version = 2\n    name = 'mine'\n")
    with pytest.raises(
        DriverLoadError, match=r"the \w+ '.*mine.py:Mine' is written for version 2 of the"
    ):
        load(f"{tmp_path}/mine.py:Mine")


def interfaces() -> dict[str, Any]:
    """Return what each interface promises: its version, and the members and parameters of its
    Protocols.
    """
    protocols = {
        "driver": (
            *(driver.Driver, driver.LiveContainer, driver.Images),
            *(driver.OpensShells, driver.HasLayer),
        ),
        "domain": (
            domain.Domain,
            domain.TriedDomain,
            domain.DialogueDomain,
            domain.Dialogue,
            domain.CertifiedDomain,
        ),
        "environment": (
            environment.Environment,
            environment.UnscoredEnvironment,
            environment.Fresh,
        ),
        "trainer": (Trainer,),
        "selection rule": (SelectionRule,),
    }
    versions = {one.seam: one.version for one in INTERFACES.values()}
    return {
        seam: {
            "version": version,
            **{one.__name__: _members(one) for one in protocols.get(seam, ())},
        }
        for seam, version in versions.items()
    }


def _members(protocol: type) -> list[str]:
    methods = {name: value for name, value in vars(protocol).items() if inspect.isfunction(value)}
    public = {
        name for name in (*methods, *inspect.get_annotations(protocol)) if not name.startswith("_")
    }
    public |= {name for name, value in vars(protocol).items() if isinstance(value, property)}
    public |= {"__call__"} & set(methods)
    return sorted(
        f"{name}({', '.join(_parameters(methods[name]))})" if name in methods else name
        for name in public
    )


def _parameters(method: Any) -> list[str]:
    given = list(inspect.signature(method).parameters.values())[1:]
    return [one.name if one.default is one.empty else f"{one.name}=" for one in given]


def test_a_changed_interface_has_a_decision_about_its_version() -> None:
    # If a plugin of the old form would break, raise `version` in INTERFACES (docs/versions.md).
    # Then write the record: .venv/bin/python -m tests.unit.test_interfaces
    assert interfaces() == json.loads(RECORD.read_text())


if __name__ == "__main__":
    RECORD.write_text(json.dumps(interfaces(), indent=2) + "\n")
