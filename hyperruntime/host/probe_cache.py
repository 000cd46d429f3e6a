"""Results of drivers' probes, kept in memory and in a file of the user's cache."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs

from hyperruntime.driver import EngineInfo
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.process import boot_id
from hyperruntime.logs import get_logger
from hyperruntime.settings.reader import read

log = get_logger(__name__)

_TRUSTED_S = 60.0


class Probed(Protocol):
    """Result of a probe; an attrs class."""

    def to_info(self) -> EngineInfo:
        """Return what the engine can do here."""
        ...


P = TypeVar("P", bound=Probed)


class ProbeFile(Generic[P]):
    """A file with what one probe found; it is valid for one boot, one user and the facts in its
    name.
    """

    def __init__(self, engine: str, facts: Sequence[Any], kind: type[P]) -> None:
        """Name the file; nothing is read or written.

        Args:
            engine: name of the engine.
            facts: JSON values that decide what works: another value means another file.
            kind: the class of what a probe found.
        """
        self._engine = engine
        self._facts = facts
        self._kind = kind

    @property
    def path(self) -> Path:
        """Where the file is.

        Raises:
            StorageError: the user has no home directory.
        """
        key = hashlib.sha256(json.dumps([*self._facts, boot_id()]).encode()).hexdigest()[:16]
        return cache_directory() / f"{self._engine}-{os.geteuid()}-{key}.json"

    def read(self) -> P | None:
        """Return what was found; None if the file does not exist or is not exactly what
        :meth:`write` writes.
        """
        try:
            stored = self.path.read_text()
            found = read(self._kind, json.loads(stored))
        except (OSError, ValueError, RecursionError):  # SpecError is a ValueError
            return None
        return found if _to_json(found) == stored else None

    def write(self, found: P) -> None:
        """Store what was found; a failure is logged and costs the next process a probe."""
        try:
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(_to_json(found))
            os.replace(temporary, path)
        except OSError as error:
            log.debug("probe not remembered", error=str(error))


def _to_json(found: Probed) -> str:
    return json.dumps(attrs.asdict(cast(attrs.AttrsInstance, found)))


def forget_probes(engine: str) -> None:
    """Remove every file of an engine and this user, so that the next probe is a real one; never
    raises.
    """
    with suppress(OSError):
        for path in cache_directory().glob(f"{engine}-{os.geteuid()}-*.json"):
            path.unlink(missing_ok=True)


class TrustedProbe(Generic[P]):
    """A probe that is trusted until a container fails to start or lacks a network; safe to use from
    many threads.
    """

    def __init__(self, engine: str, probe: Callable[[], tuple[P, bool]]) -> None:
        """Store the settings; nothing is probed yet.

        Args:
            engine: name of the engine.
            probe: returns what was found, and whether it comes from the file.
        """
        self._engine = engine
        self._probe = probe
        self._found: P | None = None
        self._info: EngineInfo
        self._tried_at = 0.0

    def get(self) -> P:
        """Return what is known; probe if nothing is known.

        Raises:
            EngineUnavailableError: the engine is missing, or runs no container.
        """
        if (found := self._found) is None:
            found, from_file = self._probe()
            self._info = found.to_info()
            self._tried_at = -math.inf if from_file else time.monotonic()
            self._found = found
        return found

    def info(self) -> EngineInfo:
        """Return what the engine can do here: the same object until the probe is distrusted; raises
        as :meth:`get`.
        """
        self.get()
        return self._info

    def get_with(self, network: str) -> P:
        """Return what is known, as :meth:`get` does; probe again before a network counts as
        missing.

        On a busy machine the trial of a network may fail for a moment, and the result is in a file.

        Args:
            network: the network that the caller needs: ``none``, ``host`` or ``bridge``.

        Raises:
            EngineUnavailableError: the engine is missing, or runs no container.
        """
        if network not in self.info().networks:
            self.distrust()
        return self.get()

    def distrust(self) -> None:
        """Forget what is known, because it may be wrong; a probe of the last minute stays."""
        if time.monotonic() - self._tried_at > _TRUSTED_S:
            self._found = None
            forget_probes(self._engine)
