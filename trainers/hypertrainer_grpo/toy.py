"""The toy task: write the requested word into a file. Does not import torch.

A model that only knows the form of a tool call succeeds in one of six attempts: there are three
words and two commands (``printf`` is right, ``echo`` adds a newline).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyperruntime.rollout.environment import EnvironmentBase, Fresh, Item, Outcome, Verdict

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.sandbox import Sandbox
    from hyperruntime.spec import ContainerSpec

FILE = "answer.txt"
WORDS = ("red", "green", "blue")
OPENINGS = ("printf ", "echo ")
_CALL = '<tool_call>{"name": "bash", "arguments": {"command": "'
_CLOSE = f' > {FILE}"}}}}</tool_call>'
_ASK = "Write "
_INTO = " into "
_EXACTLY = ", exactly."
_DONE = "done"
_ANSWER = '{"output": "", "exit_code": 0}'

# Tokens of a tiny policy; they keep conversations a few tokens long.
VOCABULARY = (
    *WORDS,
    *(f"{_CALL}{opening}" for opening in OPENINGS),
    _CLOSE,
    _DONE,
    _ANSWER,
    _ASK,
    f"{_INTO}{FILE}{_EXACTLY}",
    "tools: ",
    "bash",
)


class Toy(EnvironmentBase):
    """The toy environment, with one item for each word.

    Attributes:
        name: name of the entry point.
        slots_per_container: default number of agents per container.
    """

    name = "toy"
    slots_per_container = None  # the pool's default; the agents do not need root

    def __init__(self, *, words: tuple[str, ...] = WORDS) -> None:
        """Set the words."""
        self._words = words

    def items(self) -> Iterable[Item]:
        """Return the items."""
        return [Item(id=word, data={"word": word}) for word in self._words]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return ``base``; any image with a shell works."""
        return base

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        """Do nothing; the workspace stays empty."""
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the request for the item's word."""
        return [request(str(item.data["word"]))]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Compare the content of the file with the word, on the host.

        The reward is 1 for the exact content, and 1/3 if only whitespace around the word differs.
        The partial reward guides a policy that is nearly right.
        """
        shown = await lease.exec(["head", "-c", "100", FILE], timeout_s=30)
        word = str(item.data["word"]).encode()
        if shown.exit_code != 0:
            return Verdict(
                reward=0.0,
                parts={"file": 0.0, "word": 0.0},
                phase="tests",
                detail=f"{FILE} does not exist",
            )
        exact = shown.stdout == word
        near = shown.stdout.strip() == word
        parts = {"file": 1.0, "word": float(near)}
        return Verdict(
            reward=1.0 if exact else near / 3,
            parts=parts,
            phase="tests",
            detail=repr(shown.stdout[:40]),
        )


def request(word: str) -> dict[str, str]:
    """Return the request for a word."""
    return {"role": "user", "content": f"{_ASK}{word}{_INTO}{FILE}{_EXACTLY}"}


def demonstrations() -> list[tuple[list[dict[str, str]], str]]:
    """Return conversations, each with its next turn.

    All tool calls have the right form. Half of them use the requested word and half of them use
    ``printf``, so a policy that learned from them succeeds in a quarter of its attempts.
    """
    made: list[tuple[list[dict[str, str]], str]] = []
    for asked in WORDS:
        for opening in OPENINGS:
            for word in (*WORDS, asked):
                call = f"{_CALL}{opening}{word}{_CLOSE}"
                made.append(([request(asked)], call))
                history = [
                    request(asked),
                    {"role": "assistant", "content": call},
                    {"role": "tool", "content": _ANSWER},
                ]
                made.append((history, _DONE))
    return made
