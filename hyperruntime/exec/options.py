"""Options of an exec: deadline, streams, user and group."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Literal

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.run_as import RunAs
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, check_seconds

Stream = Literal["stdout", "stderr"]
OutputCallback = Callable[[Stream, bytes], None]


@attrs.frozen(kw_only=True)
class ExecOptions:
    """The options of one exec, apart from its command.

    Attributes:
        timeout_s: seconds after which all processes of the command are killed; None is no limit.
        source: source of its standard input; None is an empty one.
        on_output: called with each chunk of output while the command runs.
        output_limit_bytes: number of bytes of each stream that are kept.
        cancel_fd: descriptor that becomes readable when the caller cancels; None if it cannot.
        user: user of the command; None is the container's.
        group: name of the group of execs that it belongs to; None is no group.
    """

    timeout_s: float | None = None
    source: bytes | BinaryIO | None = None
    on_output: OutputCallback | None = None
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    cancel_fd: int | None = None
    user: str | RunAs | None = None
    group: str | None = None

    @classmethod
    def checked(
        cls,
        timeout_s: float | None,
        source: bytes | BinaryIO | None,
        on_output: OutputCallback | None,
        output_limit_bytes: int,
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> ExecOptions:
        """Return validated options; the parameters are the attributes of this class.

        Raises:
            SpecError: ``timeout_s`` or ``output_limit_bytes`` is invalid.
        """
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        if output_limit_bytes < 2:
            raise SpecError("output_limit_bytes", output_limit_bytes, "at least 2")
        return cls(
            timeout_s=timeout_s,
            source=source,
            on_output=on_output,
            output_limit_bytes=output_limit_bytes,
            user=user,
            group=group,
        )
