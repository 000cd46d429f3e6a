"""A library says nothing in a program that configured no logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

WARN = """
{before}
import hyperruntime_podman.probe
from hyperruntime import container, runtime
from hyperruntime.host import owner
from hyperruntime.logs import get_logger
for name in ("hyperruntime.runtime", "hyperruntime_podman.probe", "hyperruntime_other.driver"):
    get_logger(name).warning("something", path="x")
"""


def said(before: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WARN.format(before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("before", ["", "import structlog", "import logging"])
def test_a_program_that_configured_nothing_hears_nothing(before: str) -> None:
    assert said(before) == ("", "")


def test_a_program_that_configured_logging_hears_everything() -> None:
    out, err = said("import logging; logging.basicConfig(format='%(name)s %(message)s')")
    assert out == ""
    assert err.splitlines()[0] == "hyperruntime.runtime something path='x'"
    assert len(err.splitlines()) == 3


def test_every_module_logs_through_the_librarys_own_logger() -> None:
    from pathlib import Path

    import hyperruntime

    root = Path(hyperruntime.__file__).parent
    using = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "import structlog" in path.read_text()}
    assert using == {"cli/logs.py"}
