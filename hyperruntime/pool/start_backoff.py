"""What keeps containers from starting: who is told, and when it is tried again."""

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
        error: the latest, or None.
        not_before: time of the event loop before which it is not tried again.
        is_news: whether nobody has been told of it.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.error: Exception | None = None
        self.not_before = 0.0
        self.is_news = False
        self._failures = 0

    def note(self, error: Exception, now: float) -> float:
        """Note a failure; return after how many seconds it is tried again."""
        delay_s: float = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**self._failures)
        self.error, self.not_before, self.is_news = error, now + delay_s, True
        self._failures += 1
        return delay_s

    def clear(self) -> None:
        """Note a success."""
        self.error, self.not_before, self.is_news, self._failures = None, 0.0, False, 0

    @property
    def is_hopeless(self) -> bool:
        """Whether who waits should be told instead of waiting for another try."""
        return self.error is not None and (isinstance(self.error, _PERMANENT) or self._failures >= _TRIES)
