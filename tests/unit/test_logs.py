"""The library logs nothing in a program that has not configured logging."""

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


def output_of(before: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WARN.format(before=before)], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("before", ["", "import structlog", "import logging"])
def test_a_program_without_logging_configuration_gets_no_output(before: str) -> None:
    assert output_of(before) == ("", "")


def test_a_program_with_logging_configuration_gets_all_messages() -> None:
    out, err = output_of("import logging; logging.basicConfig(format='%(name)s %(message)s')")
    assert out == ""
    assert err.splitlines()[0] == "hyperruntime.runtime something path='x'"
    assert len(err.splitlines()) == 3


def test_only_the_command_line_imports_structlog() -> None:
    from pathlib import Path

    import hyperruntime

    root = Path(hyperruntime.__file__).parent
    using = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "import structlog" in path.read_text()}
    assert using == {"cli/logs.py"}
