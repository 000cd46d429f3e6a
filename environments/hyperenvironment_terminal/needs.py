"""Needs of a task: a network for its agent, a network for its tests, and the machine's resources.

Source: harborframework.com/docs/tasks/network-policy: a phase without its own ``network_mode`` has
that of ``[environment]``; a task that says nothing has the internet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hyperenvironment_terminal.compose import ROOT
from hyperenvironment_terminal.task import TEST_SCRIPT, Task
from hyperruntime.errors import SpecError
from hyperruntime.spec import ContainerSpec, Network
from hyperruntime.units import MIB

_DOWNLOADS = re.compile(
    r"(?<![\w/.-])(apt-get|apt|apk|dnf|yum|curl|wget|uvx|uv|npm|npx|conda|pip3?(?= install)|git(?= clone)"
    r"|cargo(?= install)|go(?= install)|gem(?= install))(?=\s)"
)
_HERE = re.compile(r"localhost|127\.0\.0\.1|\[::1\]")
_LISTED = 5


def downloads(task: Task) -> tuple[str, ...]:
    """Return the programs in a task's ``test.sh`` that download something; lines that name this
    machine are skipped.
    """
    if task.uses_pytest:
        return ()
    text = (task.tests / TEST_SCRIPT).read_text(errors="replace")
    lines = [
        line
        for line in text.splitlines()
        if not line.lstrip().startswith("#") and not _HERE.search(line)
    ]
    return tuple(dict.fromkeys(found for line in lines for found in _DOWNLOADS.findall(line)))


def internet_reason(task: Task) -> str:
    """Return why a task needs the internet, or ""."""
    if task.internet or task.tests_internet:
        return "its task.toml says so" if task.internet else "the task.toml says so for its tests"
    if task.tests_internet is None and (programs := downloads(task)):
        return f"its {TEST_SCRIPT} runs {', '.join(programs)}"
    return ""


def describe(task: Task) -> str:
    """Return what a task needs, as a list for people: ``internet (...), 2 cpus, 4096 MiB memory``;
    "" for nothing.
    """
    limits = task.limits
    needed = [
        f"internet ({reason})" if (reason := internet_reason(task)) else "",
        f"{limits['cpus']:g} cpus" if "cpus" in limits else "",
        f"{limits['memory_bytes'] / MIB:g} MiB memory" if "memory_bytes" in limits else "",
        f"{limits['disk_bytes'] / MIB:g} MiB disk" if "disk_bytes" in limits else "",
        f"{task.gpus} GPUs" if task.gpus else "",
        "no internet" if task.internet is False else "",
        f"its agent as the user {task.agent_user}" if task.agent_user not in ("", ROOT) else "",
    ]
    return ", ".join(filter(None, needed))


def check_network(tasks: Iterable[Task], base: ContainerSpec) -> None:
    """Check that a run has a network if its tasks need the internet.

    Args:
        tasks: the tasks of the run.
        base: the run's container spec.

    Raises:
        SpecError: it has none; the message names tasks, and why they need it.
    """
    if base.network != "none":
        return
    found = [f"{task.id} ({reason})" for task in tasks if (reason := internet_reason(task))]
    if found:
        shown = ", ".join(found[:_LISTED]) + (
            f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        )
        allowed = (
            f"bridge or host, because {len(found)} tasks need the internet: {shown}; or use "
            "--option internet=base"
        )
        raise SpecError("network", base.network, f"{allowed} to run them without")


def networks(task: Task, base: ContainerSpec) -> tuple[Network, Network]:
    """Return the networks of a task's agent and of its tests.

    Args:
        task: the task.
        base: the run's container spec; a phase that may use the internet has its network.
    """
    agent: Network = "none" if task.internet is False else base.network
    return agent, "none" if task.tests_internet is False else base.network
