"""The methods of a container that start processes and terminals, send signals to groups of
commands, and end them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar, Unpack

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.exec.exec_script import make_request, shell_keeps
from hyperruntime.exec.options import ExecKeywords, ExecOptions, TerminalKeywords
from hyperruntime.exec.spawn.process import ContainerCommand, Process, ProcessExecution
from hyperruntime.exec.spawn.terminal import DEFAULT_TERM, Terminal, WaitingCommand
from hyperruntime.exec.user_sessions import UserSessions
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ContainerSpec

P = TypeVar("P", bound=ProcessExecution)


class SpawnsProcesses(ABC):
    """Starts commands that run beside their caller."""

    spec: ContainerSpec
    _sessions: UserSessions
    _late_env: Mapping[str, str]

    @abstractmethod
    def _prepare(self, kind: type[P], args: Sequence[str | bytes], options: ExecOptions) -> P:
        """Return an execution of a command, which has not started."""

    def signal_group(self, group: str, number: int) -> bool:
        """Send a signal, such as SIGINT, to all processes of a group's commands; return whether
        there were any.

        A signal reaches every process that a running command started, in any process group and
        session. Further errors are those of :meth:`end_group`.

        Args:
            group: name of the group, as given to :meth:`exec`.
            number: number of the signal.

        Raises:
            SpecError: ``number`` is not the number of a signal.
        """
        return self._sessions.signal_group(group, number)

    async def asignal_group(self, group: str, number: int) -> bool:
        """Do what :meth:`signal_group` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.signal_group, group, number))

    def end_group(self, group: str) -> bool:
        """Kill all processes of a group's commands, also in the background; return whether none is
        left.

        A running command of the group ends with exit code 137 (SIGKILL).
        """
        return self._sessions.end_group(group)

    async def aend_group(self, group: str) -> bool:
        """Do what :meth:`end_group` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.end_group, group))

    def end_user(self, user: RunAs, also: str | RunAs | None = None) -> bool:
        """Kill every process of a user's uid, even hidden ones, and drop its lanes; return whether
        none is left.

        Takes a few milliseconds. To end a fork loop, all processes in the container are stopped for
        a moment.

        Args:
            user: the user.
            also: another form of the same user, such as its name, in which its commands ran.
        """
        return self._sessions.end_user(user, also)

    async def aend_user(self, user: RunAs, also: str | RunAs | None = None) -> bool:
        """Do what :meth:`end_user` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.end_user, user, also))

    def spawn(self, args: Sequence[str | bytes], **options: Unpack[ExecKeywords]) -> Process:
        """Start a command in the background of the caller; return it when its process exists.

        It ends with :meth:`Process.close`, or with the container. Arguments and errors are those of
        :meth:`exec`, except:

        Args:
            args: argv, never a shell string.
            input: None means that its standard input stays open for :meth:`Process.write`.
            on_output: called in a thread of the process.
        """

        def prepare(final: ExecOptions) -> ContainerCommand:
            return ContainerCommand(self._sessions, self._prepare(ProcessExecution, args, final))

        return Process(ExecOptions(**options).checked(), prepare)

    async def aspawn(self, args: Sequence[str | bytes], **options: Unpack[ExecKeywords]) -> Process:
        """Do what :meth:`spawn` does without blocking the event loop; cancelling kills the
        command.
        """
        return await blocking(EXECS, lambda: self.spawn(args, **options), undo=Process.close)

    def terminal(
        self,
        args: Sequence[str | bytes],
        *,
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[TerminalKeywords],
    ) -> Terminal:
        """Start a command on a terminal of its own in the container, such as an interactive shell.

        The image needs ``setsid`` (util-linux or busybox). The command ends with
        :meth:`Terminal.close`, or with the container. Further errors are those of :meth:`exec`.

        Args:
            args: argv, never a shell string.
            rows: number of lines.
            cols: number of columns.
            env: variables, in addition to the spec's; ``TERM`` is ``xterm-256color`` unless one of
                them sets it.
            workdir: absolute path; None means the spec's.
            user: as for :meth:`exec`.
            group: as for :meth:`exec`.
            timeout_s: as for :meth:`exec`.

        Raises:
            SpecError: ``rows`` or ``cols`` is not a number from 1 to 65535.
            UnsupportedOptionError: the container has no terminals, or this user may not open them.
        """
        env = {"TERM": self.spec.env.get("TERM", DEFAULT_TERM), **(options.get("env") or {})}
        options["env"] = env
        make_request(args, env=env)
        # The shell that enters the terminal drops variables with odd names, so env(1) sets them
        # behind it.
        odd = [
            f"{name}={value}"
            for name, value in {**self._late_env, **env}.items()
            if not shell_keeps(name)
        ]
        command = ["env", *odd, *args] if odd else args
        waiting = WaitingCommand(command, ExecOptions(**options).checked(), (rows, cols))
        return waiting.start(self._sessions, partial(self._prepare, ProcessExecution))

    async def aterminal(
        self,
        args: Sequence[str | bytes],
        *,
        rows: int = 24,
        cols: int = 80,
        **options: Unpack[TerminalKeywords],
    ) -> Terminal:
        """Do what :meth:`terminal` does without blocking the event loop; cancelling kills the
        command.
        """
        start = partial(self.terminal, args, rows=rows, cols=cols, **options)
        return await blocking(EXECS, start, undo=Terminal.close)
