"""Content of the page about a rollout run: a column for each fact of all trajectories, and the
details of single ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.report.page.generations import shortened
from hyperruntime.report.page.model_use import RecordedModelUse, number
from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer
from hyperruntime.rollout.run.store import stored_options
from hyperruntime.rollout.run_files.follow import TrajectoryFollower
from hyperruntime.rollout.run_files.record import SCORED, Segment, Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES
from hyperruntime.runs.journal import GrowingFile
from hyperruntime.runs.own_mark import has_own_mark, how_to_accept
from hyperruntime.runs.run_file import RUN, end_reason
from hyperruntime.secrets.known import Secrets
from hyperruntime.secrets.redact import MARK
from hyperruntime.storage.run_files import read_run_json

_PHASES = ("acquire_s", "setup_s", "model_s", "tools_s", "verify_s", "fresh_s", "release_s")
_MOST_TOKENS = 20_000  # of one trajectory that are shown one by one
_MOST_MESSAGE = 64 * 1024


class RolloutRun:
    """A rollout run."""

    def __init__(self, run_dir: Path, screen: Secrets, *, reads: bool = True) -> None:
        """Read the records once; only their small fields are kept.

        Args:
            run_dir: the directory.
            screen: removes keys.
            reads: whether to read the records now; else the first :meth:`read_new` does.

        Raises:
            ArchiveError: it is not the directory of a rollout run.
        """
        self._run_dir = run_dir
        self._screen = screen
        self._options = stored_options(run_dir)
        self._follower = TrajectoryFollower(run_dir)
        self._models = RecordedModelUse(self._options.model, screen)
        self._notes: list[str] = []
        self._tokenizer = self._load_tokenizer()
        if reads:
            self.read_new()

    def read_new(self) -> list[tuple[int, str]]:
        """Read new lines, see :meth:`TrajectoryFollower.read_new`."""
        changed = self._follower.read_new()
        for _, name in changed:
            self._models.put(self._follower.records[name])
        return changed

    @property
    def scores(self) -> list[float | None]:
        """The reward of each trajectory, in the order of their first lines; None if it has none."""
        return [one.reward for one in self._follower.records.values()]

    @property
    def journal(self) -> GrowingFile:
        """The file that is read."""
        return self._follower.journal

    @property
    def names(self) -> list[str]:
        """The ids of the trajectories, in the order of their first lines."""
        return list(self._follower.records)

    @property
    def notes(self) -> list[str]:
        """Notes about files that could not be read."""
        damaged = self._follower.damaged
        said = (
            [f"{damaged} lines of {TRAJECTORIES} are damaged and were skipped"] if damaged else []
        )
        return said + self._notes

    def facts(self) -> dict[str, Any]:
        """Return what the page says of the whole run, and its columns, as JSON values."""
        columns = self.columns(list(self._follower.records))
        items = {item: index for index, item in enumerate(dict.fromkeys(columns["item"]))}
        return {
            **self.head(),
            **columns,
            "items": list(items),
            "item": [items[name] for name in columns["item"]],
        }

    def _stored(self) -> dict[str, Any]:
        return read_run_json(self._run_dir / RUN, below=self._run_dir) or {}

    def head(self) -> dict[str, Any]:
        """Return what the page says of the whole run."""
        options = self._options
        made = self._follower.records
        ended = "" if self._follower.is_owned else end_reason(self._stored())
        return {
            "kind": "rollout",
            "name": self._run_dir.resolve().name,
            "state": "running" if self._follower.is_owned else "not running",
            "options": {
                **({"ended": self._screen.text(ended)} if ended else {}),
                "environment": options.environment,
                "model": self._screen.text(str(next(iter(made.values())).model)) if made else "",
                "seed": options.seed, "group size": options.group_size, "at once": options.parallel,
            },
            "models": self._models.rows(),
            "notes": self.notes,
        }  # fmt: skip

    def columns(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the columns of some trajectories by their ids; each item is a name."""
        made = [self._follower.records[name] for name in names]
        parts = dict.fromkeys(name for one in made for name in one.parts)
        return {
            "ids": [self._screen.text(one.id) for one in made],
            "item": [self._screen.text(one.item_id) for one in made],
            "score": [number(one.reward) for one in made],
            "parts": {
                self._screen.text(name): [number(one.parts.get(name)) for one in made]
                for name in parts
            },
            "failure": ["" if one.status == SCORED else _why(one) for one in made],
            "detail": [
                self._screen.text(str((one.error or {}).get("message", "")))[:500] for one in made
            ],
            "stop": [one.stop_reason for one in made],
            "turns": [one.turns for one in made],
            "calls": [one.tool_calls for one in made],
            "started": [number(one.started_at) for one in made],
            "duration": [number(one.timing.get("total_s")) for one in made],
            "steps": {
                name[:-2]: [number(one.timing.get(name)) for one in made] for name in _PHASES
            },
            "attempts": [one.attempts for one in made],
            "usage": {
                "input_tokens": [number(one.usage.get("prompt_tokens")) for one in made],
                "output_tokens": [number(one.usage.get("completion_tokens")) for one in made],
            },
        }

    def details(self, index: int) -> dict[str, Any] | None:
        """Return a trajectory's conversation, tokens, verdict and replay; None if its line is
        gone.
        """
        return self.details_of(list(self._follower.records)[index])

    def details_of(self, name: str) -> dict[str, Any] | None:
        """Return the details of a trajectory by its id, as the page shows it; None if there is
        none.
        """
        records = self._follower.records
        name = (
            name
            if name in records
            else next((one for one in records if self._screen.text(one) == name), "")
        )
        one = self._follower.whole(name) if name in records else None
        if one is None:
            return None
        is_hidden = self._tokenizer is None and self._has_key(one)
        return {
            "messages": [self._message(message) for message in one.messages],
            "tools": [
                str((_object(tool.get("function")) or tool).get("name", "")) for tool in one.tools
            ],
            "verdict": self._plain(one.verdict),
            "tool_errors": self._plain(list(one.tool_errors)),
            "error": self._plain(one.error),
            "replay": self._plain(one.replay),
            "segments": [self._segment(segment, is_hidden=is_hidden) for segment in one.segments],
        }

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        made = message.get("tool_calls")
        called = [
            _object(_object(call).get("function"))
            for call in (made if isinstance(made, list) else ())
        ]
        calls = [
            {
                "name": self._screen.text(str(one.get("name", ""))),
                "arguments": shortened(
                    self._screen.text(_text(one.get("arguments"))), _MOST_MESSAGE
                ),
            }
            for one in called
        ]
        return {
            "role": str(message.get("role", "")),
            "text": shortened(self._screen.text(_text(content)), _MOST_MESSAGE),
            "calls": calls,
        }

    def _has_key(self, one: Trajectory) -> bool:
        """Return whether the conversation has a key, which is then somewhere in its tokens."""
        text = json.dumps([*one.messages], ensure_ascii=False, default=str)
        return self._screen.text(text) != text

    def _segment(self, segment: Segment, *, is_hidden: bool) -> dict[str, Any]:
        most = _MOST_TOKENS
        shown = all_hidden(len(segment.ids[:most])) if is_hidden else self._tokens(segment.ids)
        return {
            "ids": shown.ids,
            "texts": shown.texts,
            "mask": list(segment.mask[:most]),
            "logprobs": [number(value) for value in segment.logprobs[:most]],
            "left_out": max(0, len(segment.ids) - most),
        }

    def _tokens(self, ids: Sequence[int]) -> ShownTokens:
        if self._tokenizer is None:
            return ShownTokens(list(ids[:_MOST_TOKENS]), [])
        try:
            return shown_tokens(ids, self._tokenizer.decode, self._screen, _MOST_TOKENS)
        except Exception as error:  # noqa: BLE001 - of the user's tokenizer
            self._notes.append(f"tokens are shown as numbers: {type(error).__name__}")
            self._tokenizer = None
            # whether there is a key in them is unknown now
            return all_hidden(len(ids[:_MOST_TOKENS]))

    def _load_tokenizer(self) -> DirectoryTokenizer | None:
        directory = getattr(self._options.model, "tokenizer", "") if self._options.model else ""
        if not directory:
            return None
        if not has_own_mark(self._stored(), self._run_dir):
            self._notes.append(
                "tokens are shown as numbers: the run was made elsewhere, and its tokenizer may "
                "be any directory of this machine; "
                f"{how_to_accept('rollout run --resume-from', self._run_dir)}"
            )
            return None
        try:
            return DirectoryTokenizer(str(directory))
        except HyperRuntimeError as error:
            self._notes.append(f"tokens are shown as numbers: {error}")
            return None

    def _plain(self, value: object) -> Any:  # noqa: ANN401 - JSON
        shown = self._screen.value(value)
        text = json.dumps(shown)
        return shown if len(text) <= _MOST_MESSAGE else shortened(text, _MOST_MESSAGE)


def _object(value: object) -> Mapping[str, Any]:
    """Return an object of a model's or a file's JSON; empty for anything else."""
    return value if isinstance(value, Mapping) else {}


def _why(one: Trajectory) -> str:
    return str((one.error or {}).get("kind", "")) or one.status


def _text(value: object) -> str:
    return (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
    )


Decode = Callable[[Sequence[int]], str]

MORE = 512  # tokens after the last shown one that are decoded too: a key may be cut there
_MOST_OPEN = 8  # tokens that may wait for the rest of a letter
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoders write it for a part of a letter
_CUTS = (1 / 2, 1 / 4, 3 / 4, 1 / 8, 7 / 8)


@attrs.frozen
class ShownTokens:
    """Tokens as a page shows them.

    Attributes:
        ids: the ids; None for a hidden token.
        texts: their texts, "" for a token whose text is in a later one; empty if only the ids are
            known.
    """

    ids: list[int | None]
    texts: list[str]


def shown_tokens(ids: Sequence[int], decode: Decode, screen: Secrets, most: int) -> ShownTokens:
    """Return the first tokens of a sequence with their texts, those of keys hidden.

    Args:
        ids: the tokens.
        decode: returns the text of tokens.
        screen: removes keys.
        most: number of tokens to show.
    """
    known = ids[: most + MORE]
    groups = list(_groups(known, decode))
    hidden = [
        (groups[first][0], groups[last - 1][1])
        for first, last in _hidden([text for *_, text in groups], screen)
    ]
    whole = decode(known)
    # this tokenizer's texts are not parts of the whole
    if not hidden and screen.text(whole) != whole:
        return all_hidden(len(known[:most]))
    shown_ids = list[int | None](known)
    texts = [""] * len(known)
    for _, end, text in groups:
        texts[end - 1] = text
    for begin, end in hidden:
        shown_ids[begin:end] = [None] * (end - begin)
        texts[begin:end] = [MARK, *[""] * (end - begin - 1)]
    return ShownTokens(shown_ids[:most], texts[:most])


def all_hidden(count: int) -> ShownTokens:
    """Return ``count`` hidden tokens."""
    return ShownTokens([None] * count, [MARK, *[""] * (count - 1)] if count else [])


def _groups(ids: Sequence[int], decode: Decode) -> Iterator[tuple[int, int, str]]:
    """Yield tokens that have a text together, as ``(begin, end, text)``: mostly one token each.

    Each is decoded after the one before it, since some decoders drop the blank at the beginning of
    a text.
    """
    before = begin = 0
    known = ""
    for end in range(1, len(ids) + 1):
        text = decode(ids[before:end])
        is_open = text.endswith(_UNFINISHED) and end - begin < _MOST_OPEN and end < len(ids)
        if is_open:
            continue
        yield begin, end, text[len(known) :]
        before, begin = begin, end
        known = decode(ids[before:end])


def _hidden(texts: Sequence[str], screen: Secrets) -> Iterator[tuple[int, int]]:
    """Yield the ranges of texts that hold a part of a key."""
    text = "".join(texts)
    clean = screen.text(text)
    if clean == text:
        return
    if clean.count(MARK) > text.count(MARK) + 1:  # more than one key: cut between them
        for share in _CUTS:
            at = int(len(texts) * share)
            one = "".join(texts[:at])
            other = "".join(texts[at:])
            if 0 < at < len(texts) and screen.text(one) + screen.text(other) == clean:
                yield from _hidden(texts[:at], screen)
                yield from ((at + begin, at + end) for begin, end in _hidden(texts[at:], screen))
                return
    yield _changed(texts, text, clean)


def _changed(texts: Sequence[str], text: str, clean: str) -> tuple[int, int]:
    """Return the range of texts from the first character that was changed to the last one."""
    least = min(len(text), len(clean))
    same = next((n for n in range(least) if text[n] != clean[n]), least)
    tail = next((n for n in range(least - same) if text[-1 - n] != clean[-1 - n]), least - same)
    begin = len(texts)
    at = 0
    for place, one in enumerate(texts):
        at += len(one)
        begin = min(begin, place) if at > same else begin
        if at >= len(text) - tail:
            return begin, place + 1
    return begin, len(texts)
