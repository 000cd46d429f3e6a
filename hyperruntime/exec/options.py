"""How a command runs, beside what runs."""

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
    """How a command runs, beside what runs.

    Attributes:
        timeout_s: seconds until everything it started is ended; None is never.
        source: what its standard input is fed from.
        on_output: called with each chunk while it runs.
        output_limit_bytes: how much of each stream is kept.
        cancel_fd: becomes readable when the caller gives up.
        user: as whom it runs.
        group: by which name it is ended together with others.
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
        """Return a caller's options.

        Raises:
            SpecError: one is malformed.
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
