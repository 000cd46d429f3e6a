"""Remove an owner's containers; a removal that is late goes on in the background and never fails a
caller.

A container that is not removed in time is logged once and counted. This process tries again until
it closes the runtime; then the owner's guard goes on, and after it ``prune``. Why:
docs/design/containers.md#removals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from hyperruntime.host.engine_limits import LIMITS, limit_s
from hyperruntime.logs import get_logger

log = get_logger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


@attrs.define(eq=False)
class _Removal:
    """One container that is being removed.

    Attributes:
        engine: the driver's name.
        name: the container's name.
        attempt: removes it once.
        error: why the last attempt failed, or "".
        is_gone: whether it was removed.
        is_late: whether a caller did not wait for its end.
        is_over: whether no thread tries again; one is started by the next :meth:`Removals.remove`.
    """

    engine: str
    name: str
    attempt: Callable[[], None]
    error: str = ""
    is_gone: bool = False
    is_late: bool = False
    is_over: bool = False


class Removals:
    """The removals of one owner; safe to use from many threads."""

    def __init__(self) -> None:
        """Begin without removals."""
        self._changed = threading.Condition()
        self._pending: dict[str, _Removal] = {}
        self._closing = False
        self._late = 0

    @property
    def late(self) -> int:
        """The number of containers that were not removed in time; most of them are gone by now."""
        return self._late

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of the containers that are not removed yet."""
        return tuple(self._pending)

    def remove(
        self, engine: str, name: str, attempt: Callable[[], None], *, to_the_end: bool = False
    ) -> bool:
        """Remove a container; return whether it is gone. If it is not, the removal goes on in the
        background.

        Args:
            engine: the driver's name.
            name: the container's name.
            attempt: removes the container once, or does nothing if it is gone; an error means that
                it must be repeated.
            to_the_end: whether to wait as long as an attempt may take, because its processes may
                still run.
        """
        patience_s = LIMITS["close"].most_s if to_the_end else limit_s(engine, "close")
        with self._changed:
            removal = self._pending.get(name)
            is_new = removal is None
            if removal is None:
                removal = self._pending[name] = _Removal(engine, name, attempt)
            if is_new or (removal.is_over and not self._closing):
                self._start(removal)
            self._changed.wait_for(lambda: removal.is_gone or removal.error, patience_s)
            if not removal.is_gone and not removal.is_late:
                removal.is_late = True
                self._late += 1
                why = removal.error or f"the engine did not finish within {patience_s:.0f} s"
                log.warning(
                    "container not removed in time", driver=engine, container=name, reason=why
                )
            return removal.is_gone

    def settle(self) -> tuple[str, ...]:
        """Try at once to remove what is left, and wait a while; return the names of the containers
        that stay.

        After this, nothing more is tried in this process; the owner's guard has to remove them.
        """
        with self._changed:
            for removal in self._pending.values():
                if removal.is_over and not self._closing:
                    self._start(removal)
            self._closing = True
            self._changed.notify_all()
            patience_s = max(
                (limit_s(one.engine, "close") for one in self._pending.values()), default=0.0
            )
            self._changed.wait_for(
                lambda: all(one.is_over for one in self._pending.values()), patience_s
            )
            return tuple(self._pending)

    def _start(self, removal: _Removal) -> None:
        """Start the thread of a removal; without one, it is over until the next call."""
        thread = threading.Thread(
            target=self._run, args=(removal,), name="hyperruntime-removal", daemon=True
        )
        removal.error = ""
        removal.is_over = False
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no more threads
            removal.error = str(error)
            removal.is_over = True

    def _run(self, removal: _Removal) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            error = _try(removal)
            with self._changed:
                removal.error = error
                removal.is_gone = not error
                if removal.is_gone:
                    del self._pending[removal.name]
                removal.is_over = removal.is_gone or self._closing
                self._changed.notify_all()
                if removal.is_over:
                    break
                self._changed.wait_for(lambda: self._closing, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if removal.is_late and removal.is_gone:
            log.info("late container removed", driver=removal.engine, container=removal.name)


def _try(removal: _Removal) -> str:
    """Try to remove a container; return why it failed, or ""."""
    try:
        removal.attempt()
    except Exception as error:  # noqa: BLE001 - of any driver: no error of a removal may end the work of a caller
        return str(error) or type(error).__name__
    return ""
