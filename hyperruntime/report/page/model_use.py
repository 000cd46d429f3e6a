"""The use of each model in a run, from the log of exchanges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hyperruntime.json_values import json_object
from hyperruntime.report.page.columns import number
from hyperruntime.report.page.secrets import Screen
from hyperruntime.storage.growing_file import GrowingFile


class ModelUse:
    """Requests, errors, tokens, money and seconds by model; each line of the log is read once."""

    def __init__(self, log: Path, screen: Screen) -> None:
        """Read nothing yet.

        Args:
            log: the log of exchanges, which may be missing.
            screen: removes keys.
        """
        self._log, self._screen = GrowingFile(log), screen
        self._used: dict[str, Counter[str]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Read new lines and return one row for each model.

        Raises:
            OSError: the log exists but cannot be read.
        """
        if self._log.was_replaced():
            self._log = GrowingFile(self._log.path)
            self._used.clear()
        for _, _, line in self._log.new_lines():
            self._take(json_object(line) or {})
        return [
            {"model": self._screen.text(name), **{key: number(value) for key, value in used.items()}}
            for name, used in sorted(self._used.items())
        ]

    def _take(self, entry: dict[str, Any]) -> None:
        used = self._used.setdefault(str(entry.get("sent_as") or entry.get("model") or "unknown"), Counter())
        tokens = entry.get("usage")
        tokens = tokens if isinstance(tokens, dict) else {}
        used["requests"] += 1
        used["errors"] += bool(entry.get("error"))
        for name, value in (
            ("input_tokens", tokens.get("input_tokens")), ("output_tokens", tokens.get("output_tokens")),
            ("money", entry.get("money")), ("seconds", entry.get("duration_s")),
        ):  # fmt: skip
            used[name] += value if isinstance(value, int | float) else 0  # type: ignore[assignment]
