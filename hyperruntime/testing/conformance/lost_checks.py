"""Checks of lost containers: every caller gets an error with the known facts, never a hang or a
false result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hyperruntime.container import Container
from hyperruntime.driver import PostMortem
from hyperruntime.errors import ContainerLostError, ContainerStateError
from hyperruntime.exec.killers import GIVE_UP_S
from hyperruntime.host.process import MOST_OVERLOAD
from hyperruntime.spec import ExecResult
from hyperruntime.testing.conformance.check import (
    check,
    expect,
    expect_equal,
    expect_error,
    expect_in_time,
)
from hyperruntime.testing.conformance.context import Context, shell

SOON_S = 15.0
STOP_S = 1.0
# The process with the lowest pid above 1: the library's own shell.
KILL_SUPERVISOR = """
least=
for p in /proc/[0-9]*; do
    n=${p#/proc/}
    if [ $n -gt 1 ] && [ $n -lt ${least:-99999999} ]; then least=$n; fi
done
kill -$1 $least
"""


def expect_lost(context: Context, container: Container, script: str, *arguments: str) -> None:
    """Check that a script that ends its container, its siblings and later commands all get
    ContainerLostError.

    Args:
        context: the runtime under test.
        container: the container.
        script: the script of ``sh`` that ends it.
        arguments: parameters of the script.
    """
    with ThreadPoolExecutor(3) as threads:
        siblings = [threads.submit(container.exec, ["sleep", "60"]) for _ in range(3)]
        time.sleep(0.3)
        started = time.monotonic()
        try:
            result = shell(container, script, *arguments)
        except ContainerLostError as error:
            _expect_post_mortem(error)
        else:
            raise AssertionError(f"a command that ended its container has a result: {result}")
        expect_in_time(context, started, SOON_S, "reporting the loss")
        for sibling in siblings:
            with expect_error(
                ContainerLostError, "a sibling of the command that ended the container"
            ):
                _result_in_time(context, sibling)
    with expect_error(ContainerLostError, "a command after the loss"):
        container.exec(["true"])


def _result_in_time(context: Context, running: Future[ExecResult]) -> ExecResult:
    """Return the result of a command, or raise its error; raise TimeoutError if it did not end in
    time.
    """
    context.load.wait(lambda timeout_s: bool(wait([running], max(0.0, timeout_s)).done), SOON_S)
    return running.result(timeout=0)


def _expect_post_mortem(error: ContainerLostError) -> None:
    state = error.post_mortem.state if isinstance(error.post_mortem, PostMortem) else None
    expect(
        state in {"exited", "removed"},
        f"the post-mortem of a lost container has the state {state!r}: {error}",
    )


@check("lost.everything-killed")
def everything_killed(context: Context) -> None:
    """If a command kills every process, it and its siblings get ContainerLostError, with a
    post-mortem.
    """
    with context.start() as container:
        expect_lost(context, container, "kill -KILL -1; sleep 60")


@check("lost.supervisor-killed")
def supervisor_killed(context: Context) -> None:
    """If a command kills the library's own shell, it gets ContainerLostError with a post-mortem."""
    with context.start() as container:
        expect_lost(context, container, KILL_SUPERVISOR + "sleep 60", "KILL")


@check("lost.supervisor-stopped", when="first")
def supervisor_stopped(context: Context) -> None:
    """If a command stops the library's own shell, it ends at its timeout; the next one gets
    ContainerLostError.

    Only that shell can kill processes of another user's daemon: there, the library waits for it
    before it gives the container up.
    """
    patience_s = 0.0 if context.info.owns_processes else GIVE_UP_S * MOST_OVERLOAD
    with context.start() as container:
        started = time.monotonic()
        try:
            result = shell(
                container,
                KILL_SUPERVISOR + "setsid sleep 60",
                "STOP",
                timeout_s=context.load.bound(STOP_S),
            )
            expect(result.timed_out, f"the command did not time out: {result}")
        except ContainerLostError as error:
            expect(error.post_mortem is not None, f"the error has no post-mortem: {error}")
        bound_s = STOP_S + patience_s + SOON_S
        expect_in_time(context, started, bound_s, "a command of a stopped supervisor")
        with expect_error(ContainerLostError, "a command after the supervisor was stopped"):
            container.exec(["true"])


@check("lost.first-process-signalled")
def first_process_signalled(context: Context) -> None:
    """Signals to PID 1 have no effect, or end the container with ContainerLostError; no hang or
    false result.
    """
    with context.start() as container:
        try:
            result = shell(
                container,
                "kill -HUP 1; kill -TERM 1; kill -KILL 1; sleep 0.5; echo here; exit 5",
                timeout_s=20,
            )
            expect_equal(
                (result.exit_code, result.stdout),
                (5, b"here\n"),
                "the command that signalled PID 1",
            )
            expect_equal(
                container.exec(["echo", "on"], timeout_s=20).stdout, b"on\n", "the next command"
            )
        except ContainerLostError as error:
            _expect_post_mortem(error)


@check("lost.removed")
def removed(context: Context) -> None:
    """A container that is removed from outside is lost: commands fail, listeners are called, and
    ``ended`` returns.
    """
    heard = threading.Event()
    unsubscribed = threading.Event()
    with context.start() as container, ThreadPoolExecutor(2) as threads:
        container.on_end(heard.set)
        container.on_end(unsubscribed.set)()
        running = threads.submit(container.exec, ["sleep", "60"])
        waiting = threads.submit(asyncio.run, container.ended())
        time.sleep(0.3)
        expect(
            container.is_alive and not waiting.done(), "a running container is reported as ended"
        )
        context.driver.remove_container(container.name)
        with expect_error(ContainerLostError, "a command in a container that is removed"):
            _result_in_time(context, running)
        expect(context.load.wait_until(heard.is_set, SOON_S), "a listener did not learn of the end")
        expect(context.load.wait_until(waiting.done, SOON_S), "ended() did not return")
        expect(
            not (container.is_alive or unsubscribed.is_set()),
            "it is alive, or a removed listener was called",
        )


@check("lost.closed")
def closed(context: Context) -> None:
    """Closing a container ends its commands; later commands raise ContainerStateError; closing
    twice is allowed.
    """
    container = context.start()
    heard = threading.Event()
    later = threading.Event()
    container.on_end(heard.set)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(container.exec, ["sleep", "60"]) for _ in range(2)]
        time.sleep(0.3)
        started = time.monotonic()
        container.close()
        container.close()
        expect_in_time(context, started, SOON_S, "closing")
        for one in running:
            with expect_error(
                (ContainerLostError, ContainerStateError), "a command that ran while it was closed"
            ):
                _result_in_time(context, one)
    container.on_end(later.set)
    expect(
        context.load.wait_until(heard.is_set, SOON_S),
        "a listener did not learn that the container was closed",
    )
    expect(later.is_set() and not container.is_alive, "a closed container is reported as alive")
    with expect_error(ContainerStateError, "a command in a closed container", "closed"):
        container.exec(["true"])
