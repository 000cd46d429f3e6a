"""A process that owns containers, for checks that kill it: ``python -P -m`` with the arguments of
:func:`main`.

It prints one JSON object when its containers run, then waits to be killed.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyperruntime.container import Container
from hyperruntime.driver import Driver
from hyperruntime.errors import ExecStartError, UnsupportedOptionError
from hyperruntime.host.process import PIPE, HostProcess, python_args, spawn
from hyperruntime.host.python import PYTHONPATH, safe_python_path
from hyperruntime.runtime import Runtime
from hyperruntime.testing.conformance.context import LABEL, RUN_ID, Context

MODULE = "hyperruntime.testing.conformance.owner"
STOP_ALL = "kill -STOP -1; sleep 600"
_OPENING = 4  # threads for each container
HIDE = "trap '' TERM; setsid sleep $1 & sleep $1"


def start_owner(
    driver: Driver, image: str, *words: str, env: Mapping[str, str] | None = None
) -> HostProcess:
    """Start a process that owns containers.

    Args:
        driver: its class is used in the new process.
        image: image of the containers.
        words: the other arguments of :func:`main`: count, mark, how.
        env: changes of the environment.
    """
    kind = type(driver)
    environment = {
        **os.environ,
        PYTHONPATH: safe_python_path(os.pathsep.join(sys.path)),
        **(env or {}),
    }
    args = python_args(
        "-W", "ignore", "-m", MODULE, kind.__module__, kind.__qualname__, image, *words
    )
    return spawn(args, stdin=PIPE, stdout=PIPE, env=environment)


def main(module: str, name: str, image: str, count: str, mark: str, how: str) -> None:
    """Own containers until killed.

    Args:
        module: module of the driver's class.
        name: name of the driver's class.
        image: image of the containers.
        count: number of containers.
        mark: seconds that the commands in the containers sleep; also the containers' label.
        how: ``fork``: fork a child that lives on; ``stop``: stop all processes in the containers;
            ``job``: close them on SIGTERM; ``use``: have a process, a terminal, a port and a shell
            open in each, and go on to open more; else nothing.
    """
    driver = getattr(importlib.import_module(module), name)()
    driver.probe()
    with Runtime(driver, run_id=RUN_ID) as runtime:
        # No directory of the suite: after SIGKILL, no process would remove it.
        own(Context(driver, runtime, image, Path("/nowhere")), int(count), mark, how)


def own(context: Context, count: int, mark: str, how: str) -> None:
    """Start the containers, print the owner's facts as JSON, and wait.

    Args:
        context: the open runtime.
        count: number of containers.
        mark: as for :func:`main`.
        how: as for :func:`main`.
    """
    containers = [context.start(labels={LABEL: f"{mark}-{number}"}) for number in range(count)]
    if context.info.snapshots:
        containers[0].exec(["sh", "-c", "echo kept >/kept"])
        containers[0].snapshot()
    for container in containers:
        running: list[Any] = [["sleep", mark], ["sh", "-c", HIDE, "owner", mark]]
        for args in running:
            threading.Thread(target=container.exec, args=(args,), daemon=True).start()
    time.sleep(0.5)
    if how == "stop":
        for container in containers:
            threading.Thread(
                target=container.exec, args=(["sh", "-c", STOP_ALL],), daemon=True
            ).start()
        time.sleep(0.5)
    for container in containers if how == "use" else ():
        _open_all(container, mark)
        for _ in range(_OPENING):
            threading.Thread(target=_open_more, args=(container, mark), daemon=True).start()
    child = os.fork() if how == "fork" else 0
    if how == "fork" and child == 0:
        time.sleep(120)
        os._exit(0)
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    if how == "job":
        # a signal that comes just before the wait below would not end it
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    private = os.path.dirname(containers[0]._dir)  # noqa: SLF001 - these files must be removed too
    print(json.dumps({"pid": os.getpid(), "child": child, "private": private}), flush=True)
    select.select([reader], [], [], 600)


def _open_all(container: Container, mark: str) -> None:
    """Open one of each kind; the image may lack the programs for a terminal, a port or a shell."""
    container.spawn(["sleep", mark])
    with suppress(UnsupportedOptionError):
        container.terminal(["sh", "-c", HIDE, "terminal", mark])
    with suppress(UnsupportedOptionError):
        container.forward(8080)
    with suppress(ExecStartError):
        container.shell().run(f"sleep {mark} & cd /")


def _open_more(container: Container, mark: str) -> None:
    """Open and close processes without an end, so that one is being opened when the owner is
    killed.
    """
    while True:
        with container.spawn(["sleep", mark]), container.spawn(["sleep", mark]):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
