"""A container's methods for all processes of a group of commands, or of a user."""

from __future__ import annotations

from functools import partial

from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime.exec.user_sessions import UserSessions
from hyperruntime.run_as import RunAs


class ContainerGroups:
    """The part of a container that signals and ends many processes."""

    _sessions: UserSessions

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
