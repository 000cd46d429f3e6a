"""Take keys out of whatever is written or sent. Imports nothing of the project."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable

MARK = "[redacted]"
_SHORTEST = 6  # a shorter "key" would blank ordinary words


class Redactor:
    """Knows the keys of a gateway; new ones may be added at any time."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Start with some."""
        self._secrets: frozenset[bytes] = frozenset()
        self._lock = threading.Lock()
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Know one more, also as JSON writes it."""
        if len(secret) >= _SHORTEST:
            with self._lock:
                self._secrets |= {secret.encode(), json.dumps(secret)[1:-1].encode()}

    def remove(self, secret: str) -> None:
        """Forget one that is no longer valid."""
        with self._lock:
            self._secrets -= {secret.encode(), json.dumps(secret)[1:-1].encode()}

    def clean(self, data: bytes) -> bytes:
        """Return bytes without them."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, MARK.encode())
        return data

    def clean_text(self, text: str) -> str:
        """Return a text without them."""
        return self.clean(text.encode(errors="surrogateescape")).decode(errors="replace")
