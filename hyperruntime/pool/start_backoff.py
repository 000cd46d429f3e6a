"""Start-failure backoff: when to retry, and when to fail the waiting acquires."""

from __future__ import annotations

from hyperruntime.errors import (
    DeviceNotFoundError,
    EngineUnavailableError,
    ImageError,
    SpecError,
    StorageError,
    UnsupportedOptionError,
)

_FIRST_DELAY_S, _MAX_DELAY_S = 0.25, 15.0
_TRIES = 3
_PERMANENT = (DeviceNotFoundError, EngineUnavailableError, ImageError, SpecError, StorageError, UnsupportedOptionError)


class StartBackoff:
    """The failures to start since the last success.

    Attributes:
        error: the latest failure, or None.
        not_before: time of the event loop of the next try.
        is_news: whether no waiting acquire has received the error yet.
    """

    def __init__(self) -> None:
        """Begin without failures."""
        self.error: Exception | None = None
        self.not_before = 0.0
        self.is_news = False
        self._failures = 0

    def note(self, error: Exception, now: float) -> float:
        """Record a failure; return the seconds until the next try.

        Args:
            error: the failure.
            now: the present time of the event loop.
        """
        delay_s: float = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        self.error, self.not_before, self.is_news = error, now + delay_s, True
        self._failures += 1
        return delay_s

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting acquires should fail: the error is permanent, or the third try failed."""
        return self.error is not None and (isinstance(self.error, _PERMANENT) or self._failures >= _TRIES)
