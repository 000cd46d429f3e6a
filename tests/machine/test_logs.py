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
        [sys.executable, "-c", WARN.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
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
    using = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "import structlog" in path.read_text()
    }
    assert using == {"cli/messages.py"}


QUIET = """
import sys, threading, time
from hyperruntime.cli.messages import configure_logging
from hyperruntime.logs import get_logger

configure_logging("warning", as_json=False)
get_logger("x").info("quiet")
assert "structlog" not in sys.modules
{then}
"""
BY_ITSELF = """
import structlog
structlog.get_logger().info("quiet")
structlog.get_logger().error("loud")
"""
LOOKED_FOR = """
import importlib.util
assert importlib.util.find_spec("structlog")
assert "structlog" not in sys.modules
get_logger("x").warning("loud")
"""
AGAIN = """
import structlog
configure_logging("error", as_json=True)
get_logger("x").warning("quiet")
get_logger("x").error("loud")
"""
MEANWHILE = """
def log_quietly():
    while thread.is_alive():
        get_logger("x").info("quiet")

logging_ = __import__("logging")
logging_.basicConfig(format="%(message)s", level=logging_.DEBUG)
thread = threading.Thread(target=get_logger("x").warning, args=("loud",))
others = [threading.Thread(target=log_quietly) for _ in range(3)]
sys.setswitchinterval(1e-5)
for one in (thread, *others):
    one.start()
for one in (thread, *others):
    one.join()
"""


@pytest.mark.parametrize(
    "then",
    ['get_logger("x").warning("loud")', BY_ITSELF, LOOKED_FOR, AGAIN, MEANWHILE],
    ids=["an event", "a plug-in", "looked for first", "another level", "other threads meanwhile"],
)
def test_the_command_line_imports_structlog_when_there_is_something_to_show(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET.format(then=then)], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert "loud" in done.stderr
    assert "quiet" not in done.stderr
    assert "Traceback" not in done.stderr
