"""What a page shows of a rollout run: a column for each fact of all trajectories, and the details of single ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.json_values import json_object
from hyperruntime.logs import get_logger
from hyperruntime.report.page.columns import number
from hyperruntime.report.page.generations import shortened
from hyperruntime.report.page.secrets import Screen
from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer
from hyperruntime.rollout.run.store import stored_options
from hyperruntime.rollout.run_files.record import SCORED, Segment, Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, trajectory_of
from hyperruntime.storage.run_lock import owner_state

log = get_logger(__name__)

_PHASES = ("acquire_s", "setup_s", "model_s", "tools_s", "verify_s", "fresh_s", "release_s")
_MOST_TOKENS = 20_000  # of one trajectory that are shown one by one
_MOST_MESSAGE = 64 * 1024


class RolloutRun:
    """A rollout run.

    Attributes:
        scores: the reward of each trajectory, in the order of their first lines; None if it has none.
        notes: what could not be read.
    """

    def __init__(self, run_dir: Path, screen: Screen) -> None:
        """Read the records once; only their small fields are kept.

        Args:
            run_dir: the directory.
            screen: removes keys.

        Raises:
            ArchiveError: it is not the directory of a rollout run.
        """
        self._run_dir, self._screen = run_dir, screen
        self._options = stored_options(run_dir)
        self.notes: list[str] = []
        self._path = run_dir / TRAJECTORIES
        self._places: dict[str, tuple[int, int]] = {}
        small: dict[str, Trajectory] = {}
        for trajectory, place in self._lines():
            small[trajectory.id] = attrs.evolve(trajectory, messages=(), tools=(), segments=(), tool_errors=())
            self._places[trajectory.id] = place
        self._small = list(small.values())
        self.scores = [one.reward for one in self._small]
        self._tokenizer = self._load_tokenizer()

    def facts(self) -> dict[str, Any]:
        """Return what the page says of the whole run, and its columns, as JSON values."""
        made, options = self._small, self._options
        items = {item: index for index, item in enumerate(dict.fromkeys(one.item_id for one in made))}
        parts = dict.fromkeys(name for one in made for name in one.parts)
        is_alive = owner_state(self._run_dir) == "alive"
        return {
            "kind": "rollout",
            "name": self._run_dir.resolve().name,
            "state": "running" if is_alive else "not running",
            "options": {
                "environment": options.environment, "model": made[0].model if made else "", "seed": options.seed,
                "group size": options.group_size, "at once": options.parallel,
            },
            "items": [self._screen.text(item) for item in items],
            "ids": [self._screen.text(one.id) for one in made],
            "item": [items[one.item_id] for one in made],
            "score": [number(one.reward) for one in made],
            "parts": {self._screen.text(name): [number(one.parts.get(name)) for one in made] for name in parts},
            "failure": ["" if one.status == SCORED else _why(one) for one in made],
            "detail": [self._screen.text(str((one.error or {}).get("message", "")))[:500] for one in made],
            "stop": [one.stop_reason for one in made],
            "turns": [one.turns for one in made],
            "calls": [one.tool_calls for one in made],
            "started": [number(one.started_at) for one in made],
            "duration": [number(one.timing.get("total_s")) for one in made],
            "steps": {name[:-2]: [number(one.timing.get(name)) for one in made] for name in _PHASES},
            "attempts": [one.attempts for one in made],
            "usage": {
                "input_tokens": [number(one.usage.get("prompt_tokens")) for one in made],
                "output_tokens": [number(one.usage.get("completion_tokens")) for one in made],
            },
            "models": [],
        }  # fmt: skip

    def details(self, index: int) -> dict[str, Any] | None:
        """Return a trajectory's conversation, tokens, verdict and replay; None if its line is gone."""
        begin, length = self._places[self._small[index].id]
        with self._path.open("rb") as file:
            file.seek(begin)
            value = json_object(file.read(length))
        if value is None:
            return None
        one = trajectory_of(value)
        return {
            "messages": [self._message(message) for message in one.messages],
            "tools": [str((tool.get("function") or tool).get("name", "")) for tool in one.tools],
            "verdict": self._plain(one.verdict),
            "tool_errors": self._plain(list(one.tool_errors)),
            "error": self._plain(one.error),
            "replay": self._plain(one.replay),
            "segments": [self._segment(segment) for segment in one.segments],
        }

    def _lines(self) -> Iterator[tuple[Trajectory, tuple[int, int]]]:
        """Yield the trajectories, and the offset and the length of their lines."""
        begin = damaged = 0
        try:
            with self._path.open("rb") as file:
                for line in file:
                    value = json_object(line)
                    if value is not None:
                        try:
                            yield trajectory_of(value), (begin, len(line))
                        except (TypeError, AttributeError):
                            damaged += 1
                    else:
                        damaged += 1
                    begin += len(line)
        except FileNotFoundError:
            return
        if damaged:
            self.notes.append(f"{damaged} lines of {TRAJECTORIES} are damaged and were skipped")

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        called = [call.get("function") or {} for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
        calls = [
            {
                "name": self._screen.text(str(one.get("name", ""))),
                "arguments": shortened(self._screen.text(_text(one.get("arguments"))), _MOST_MESSAGE),
            }
            for one in called
        ]
        return {
            "role": str(message.get("role", "")),
            "text": shortened(self._screen.text(_text(content)), _MOST_MESSAGE),
            "calls": calls,
        }

    def _segment(self, segment: Segment) -> dict[str, Any]:
        most = _MOST_TOKENS
        ids = list(segment.ids[:most])
        return {
            "ids": ids,
            "texts": self._token_texts(ids),
            "mask": list(segment.mask[:most]),
            "logprobs": [number(value) for value in segment.logprobs[:most]],
            "left_out": max(0, len(segment.ids) - most),
        }

    def _token_texts(self, ids: list[int]) -> list[str]:
        if self._tokenizer is None:
            return []
        try:
            return [self._screen.text(self._tokenizer.decode([token])) for token in ids]
        except Exception as error:  # noqa: BLE001 - of the user's tokenizer; the page shows the numbers
            self.notes.append(f"tokens are shown as numbers: {type(error).__name__}")
            self._tokenizer = None
            return []

    def _load_tokenizer(self) -> DirectoryTokenizer | None:
        directory = getattr(self._options.model, "tokenizer", "") if self._options.model else ""
        if not directory:
            return None
        try:
            return DirectoryTokenizer(str(directory))
        except HyperRuntimeError as error:
            self.notes.append(f"tokens are shown as numbers: {error}")
            return None

    def _plain(self, value: object) -> Any:  # noqa: ANN401 - JSON
        shown = self._screen.value(value)
        text = json.dumps(shown)
        return shown if len(text) <= _MOST_MESSAGE else shortened(text, _MOST_MESSAGE)


def _why(one: Trajectory) -> str:
    return str((one.error or {}).get("kind", "")) or one.status


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
