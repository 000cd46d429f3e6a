"""The use of each model in a run: of the loop, from the log of exchanges; of rollouts, from the
trajectories.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hyperruntime.gateway.log.budget import Tokens
from hyperruntime.json_values import json_object
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.runs.journal import GrowingFile
from hyperruntime.secrets.known import Secrets


class ModelUse:
    """Sums by model: ``requests``, ``errors``, ``input_tokens``, ``output_tokens``, ``money``,
    ``seconds``.
    """

    def __init__(self, screen: Secrets) -> None:
        """Begin with nothing.

        Args:
            screen: removes keys.
        """
        self._screen = screen
        self._used: dict[str, Counter[str]] = {}
        self._parts: Counter[str] = Counter()  # how much was added to each model

    def add(self, model: str, use: Mapping[str, object]) -> None:
        """Add a use of a model; its row has only the sums that some use of it names."""
        self._parts[model] += 1
        used = self._used.setdefault(model, Counter())
        for name, value in use.items():
            used[name] += _amount(value)  # type: ignore[assignment]

    def remove(self, model: str, use: Mapping[str, object]) -> None:
        """Subtract a use that was added; a model without uses has no row."""
        self._parts[model] -= 1
        if not self._parts[model]:
            del self._used[model]
            return
        for name, value in use.items():
            self._used[model][name] -= _amount(value)  # type: ignore[assignment]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each model."""
        return [
            {
                "model": self._screen.text(name),
                **{key: number(value) for key, value in used.items()},
            }
            for name, used in sorted(self._used.items())
        ]


def _amount(value: object) -> int | float:
    return (
        value if isinstance(value, int | float) and value == value and abs(value) != math.inf else 0
    )


class LoggedModelUse:
    """The use in a log of exchanges that may grow; each line is read once."""

    def __init__(self, log: Path, screen: Secrets) -> None:
        """Read nothing yet.

        Args:
            log: the log of exchanges, which may be missing.
            screen: removes keys.
        """
        self._log = GrowingFile(log)
        self._screen = screen
        self._use = ModelUse(screen)

    def rows(self) -> list[dict[str, Any]]:
        """Read new lines and return one row for each model.

        Raises:
            OSError: the log exists but cannot be read.
        """
        if self._log.was_replaced():
            self._log, self._use = GrowingFile(self._log.path), ModelUse(self._screen)
        for _, _, line in self._log.new_lines():
            entry = json_object(line) or {}
            tokens = entry.get("usage")
            tokens = tokens if isinstance(tokens, dict) else {}
            use = {"requests": 1, "errors": bool(entry.get("error")), "money": entry.get("money")}
            use |= {name: tokens.get(name) for name in ("input_tokens", "output_tokens")}
            model = str(entry.get("sent_as") or entry.get("model") or "unknown")
            self._use.add(model, {**use, "seconds": entry.get("duration_s")})
        return self._use.rows()


class RecordedModelUse:
    """The use in trajectories that may be made again; a turn is a request, and failed ones are not
    recorded.
    """

    def __init__(self, options: ModelOptions | None, screen: Secrets) -> None:
        """Begin with nothing.

        Args:
            options: the model of the run, which may have prices.
            screen: removes keys.
        """
        self._options = options
        self._use = ModelUse(screen)
        self._known: dict[str, tuple[str, dict[str, object]]] = {}

    def put(self, one: Trajectory) -> None:
        """Count a trajectory; the one with its id that was counted before does not count any
        more.
        """
        if (old := self._known.get(one.id)) is not None:
            self._use.remove(*old)
        tokens = Tokens(input=_count(one, "prompt_tokens"), output=_count(one, "completion_tokens"))
        spent: dict[str, object] = {"requests": one.turns, "seconds": one.timing.get("model_s")}
        spent |= {"input_tokens": tokens.input, "output_tokens": tokens.output}
        if self._options and self._options.name == one.model:
            spent["money"] = tokens.cost(self._options.input_price, self._options.output_price)
        self._known[one.id] = str(one.model), spent
        self._use.add(str(one.model), spent)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each model."""
        return self._use.rows()


def _count(one: Trajectory, name: str) -> int:
    return int(number(one.usage.get(name)) or 0)


_DIGITS = 6


def number(value: object) -> float | int | None:
    """Return a number with six significant digits, whole ones as they are; None for anything
    else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        if not math.isfinite(value):
            return None
    except OverflowError:  # an integer of hundreds of digits
        return None
    if isinstance(value, int):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 10**_DIGITS else short


def time_of(text: str) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, rounded to 0.1 s; None if the text is not
    such a time.
    """
    try:
        return round(datetime.fromisoformat(text).timestamp(), 1)
    except ValueError:
        return None
