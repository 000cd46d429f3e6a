"""Options of an exec: deadline, streams, user and group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO, Literal, TypedDict

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.pickling import names_only
from hyperruntime.run_as import RunAs
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, check_seconds

Stream = Literal["stdout", "stderr"]
OutputCallback = Callable[[Stream, bytes], None]


class TextKeywords(TypedDict, total=False):
    """Keyword arguments of a text in a persistent shell; :meth:`Container.exec` describes them."""

    timeout_s: float | None
    input: bytes | BinaryIO | None
    on_output: OutputCallback | None
    output_limit_bytes: int
    merge_output: bool


class CommandKeywords(TextKeywords, total=False):
    """Keyword arguments of a command without a group; :meth:`Container.exec` describes them."""

    env: Mapping[str, str] | None
    workdir: str | None


class SlotExecKeywords(CommandKeywords, total=False):
    """Keyword arguments of an exec in a slot, which has its own user; :meth:`Container.exec`
    describes them.
    """

    group: str | None


class SlotShellKeywords(TypedDict, total=False):
    """Keyword arguments of a shell in a slot, which has its own user; :meth:`Container.shell`
    describes them.
    """

    env: Mapping[str, str] | None
    workdir: str | None
    group: str | None


class SlotTerminalKeywords(SlotShellKeywords, total=False):
    """Keyword arguments of a terminal in a slot, which has its own user; :meth:`Container.terminal`
    describes them.
    """

    rows: int
    cols: int
    timeout_s: float | None


class ShellKeywords(SlotShellKeywords, total=False):
    """Keyword arguments of :meth:`Container.shell`, which describes them."""

    user: str | RunAs | None


class TerminalKeywords(SlotTerminalKeywords, total=False):
    """Keyword arguments of :meth:`Container.terminal`, which describes them."""

    user: str | RunAs | None


class ExecKeywords(SlotExecKeywords, total=False):
    """Keyword arguments of :meth:`Container.exec`, which describes them."""

    user: str | RunAs | None


@attrs.frozen(kw_only=True)
class ExecOptions:
    """The options of one exec, apart from its command.

    Attributes:
        timeout_s: seconds after which all processes of the command are killed; None means no limit.
        env: variables for this command, in addition to the container's.
        workdir: absolute path; None means the container's.
        input: source of its standard input; None means an empty one.
        on_output: called with each chunk of output while the command runs.
        output_limit_bytes: number of bytes of each stream that are kept.
        merge_output: whether its standard error goes to its standard output.
        user: user of the command; None means the container's.
        group: name of the group of execs that it belongs to; None means no group.
        cancel_fd: descriptor that becomes readable when the caller cancels; None if it cannot.
    """

    timeout_s: float | None = None
    env: Mapping[str, str] | None = attrs.field(default=None, repr=names_only, hash=False)
    workdir: str | None = None
    input: bytes | BinaryIO | None = None
    on_output: OutputCallback | None = None
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    merge_output: bool = False
    user: str | RunAs | None = None
    group: str | None = None
    cancel_fd: int | None = None

    @classmethod
    def of_shell(
        cls,
        *,
        user: str | RunAs | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        group: str | None = None,
    ) -> ExecOptions:
        """Return the options of a persistent shell; it takes no others."""
        return cls(user=user, env=env, workdir=workdir, group=group)

    def checked(self) -> ExecOptions:
        """Return itself if it is valid.

        Raises:
            SpecError: ``timeout_s`` or ``output_limit_bytes`` is invalid.
        """
        if self.timeout_s is not None:
            check_seconds("timeout_s", self.timeout_s)
        if self.output_limit_bytes < 2:
            raise SpecError("output_limit_bytes", self.output_limit_bytes, "at least 2")
        return self
