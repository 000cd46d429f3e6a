"""The users of a task: as whom the agent works, and as whom the tests run.

Design: docs/design/pool.md#users-of-tasks.

Source: Harbor 0.26, ``src/harbor/models/task/config.py``: ``AgentConfig.user`` and
``VerifierConfig.user``; and ``src/harbor/trial/trial.py``: ``with_default_user`` around the agent
and around the verifier.
"""

from __future__ import annotations

from hyperenvironment_terminal.compose import ROOT
from hyperenvironment_terminal.task import Task
from hyperruntime.errors import (
    ExecStartError,
    HyperRuntimeError,
    SpecError,
    UserNotFoundError,
    WorkdirNotFoundError,
)
from hyperruntime.pool.user_lease import UserLease, lease_as, local_lease
from hyperruntime.sandbox import Sandbox


class TaskUserError(HyperRuntimeError):
    """A container cannot run the commands of a task's user."""


async def agents_lease(task: Task, container: Sandbox) -> Sandbox:
    """Return the lease with which an agent, or the known solution, works.

    Raises:
        TaskUserError: the container cannot run its commands.
    """
    return await _lease(task, "agent", task.agent_user, container)


async def judges_lease(task: Task, container: Sandbox) -> Sandbox:
    """Return the lease with which the tests run.

    Raises:
        TaskUserError: the container cannot run their commands.
    """
    return await _lease(task, "verifier", task.tests_user, container)


async def check_users(task: Task, container: Sandbox) -> None:
    """Check, before an agent works, that the users of a task exist and can enter the working
    directory.

    Raises:
        TaskUserError: one of them does not, or cannot; or the engine has no users, or images
            without their files.
    """
    users = {user for user in (task.agent_user, task.tests_user) if user not in ("", ROOT)}
    engine = local_lease(container).pool.engine
    if users and not (engine.users and engine.image_owners):
        why = (
            "gives all files of an image to root"
            if engine.users
            else "has no users on this machine"
        )
        raise TaskUserError(
            f"task {task.id!r} names the user {min(users)!r}, but {engine.engine} {why}; use "
            "Podman or Docker"
        )
    for lease in (await agents_lease(task, container), await judges_lease(task, container)):
        if lease is not container:
            await _check(task, lease)


async def make_directory(path: str, container: Sandbox, owner: Sandbox) -> None:
    """Make a directory that belongs to the user of another lease on the same container.

    Args:
        path: the directory; it may exist.
        container: a lease that may change owners.
        owner: the lease of the new owner.
    """
    (await container.exec(["mkdir", "-p", "--", path], workdir="/")).check()
    if isinstance(owner, UserLease):
        (await container.exec(["chown", "-R", str(owner.ids), path], workdir="/")).check()


async def _lease(task: Task, role: str, user: str, container: Sandbox) -> Sandbox:
    if user in ("", ROOT):
        return container
    try:
        return await lease_as(container, user)
    except UserNotFoundError:
        why = "does not exist in its image; add it there"
    except SpecError as error:
        why = f"is not {error.allowed}"
    raise TaskUserError(
        f"task {task.id!r} names the user {user!r}, who {why}, or change `user` of {role}"
    )


async def _check(task: Task, lease: Sandbox) -> None:
    try:
        (await lease.exec(["/bin/sh", "-c", "cd ."])).check()
    except (WorkdirNotFoundError, ExecStartError) as error:
        raise TaskUserError(
            f"a user of task {task.id!r} cannot work in {lease.slot.workspace}: {error}"
        ) from None
