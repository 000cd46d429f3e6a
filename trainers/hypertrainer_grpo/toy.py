"""The toy task: write the word that is asked for into a file. Imports no torch.

A model that knows how to call a tool, but not what for, has one chance in six: two commands (``printf`` is right,
``echo`` adds a newline that nobody asked for) and three words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict

if TYPE_CHECKING:
    from hyperruntime.images.store import ImageStore
    from hyperruntime.pool.lease import Lease
    from hyperruntime.spec import ContainerSpec

FILE = "answer.txt"
WORDS = ("red", "green", "blue")
OPENINGS = ("printf ", "echo ")
_CALL = '<tool_call>{"name": "bash", "arguments": {"command": "'
_CLOSE = f' > {FILE}"}}}}</tool_call>'
_ASK, _INTO, _EXACTLY = "Write ", " into ", ", exactly."
_DONE = "done"
_ANSWER = '{"output": "", "exit_code": 0}'

# What a tiny policy needs tokens for, so that the task is a few tokens long.
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


class Toy:
    """One item for each word.

    Attributes:
        name: of the entry point.
        slots_per_container: asked for where the user does not say.
    """

    name = "toy"
    slots_per_container = None  # as many as the engine can keep apart: agents need not be root

    def __init__(self, *, words: tuple[str, ...] = WORDS) -> None:
        """Ask for these words."""
        self._words = words

    def items(self) -> Iterable[Item]:
        """Return the items."""
        return [Item(id=word, data={"word": word}) for word in self._words]

    def spec(self, item: Item, base: ContainerSpec, images: ImageStore) -> ContainerSpec:
        """Return what was given: any image with a shell will do."""
        return base

    async def setup(self, item: Item, lease: Lease) -> Mapping[str, Any]:
        """Leave the workspace empty."""
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the request."""
        return [request(str(item.data["word"]))]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Lease, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        """Compare the file with the word on the host; what the file holds decides, whatever wrote it.

        A word in a file of other bytes is worth a third, so that a policy that is nearly right is told so.
        """
        shown = await lease.exec(["head", "-c", "100", FILE], timeout_s=30)
        word = str(item.data["word"]).encode()
        if shown.exit_code != 0:
            return Verdict(reward=0.0, parts={"file": 0.0, "word": 0.0}, phase="tests", detail=f"there is no {FILE}")
        exact, near = shown.stdout == word, shown.stdout.strip() == word
        parts = {"file": 1.0, "word": float(near)}
        return Verdict(reward=1.0 if exact else near / 3, parts=parts, phase="tests", detail=repr(shown.stdout[:40]))


def request(word: str) -> dict[str, str]:
    """Return the request for a word."""
    return {"role": "user", "content": f"{_ASK}{word}{_INTO}{FILE}{_EXACTLY}"}


def demonstrations() -> list[tuple[list[dict[str, str]], str]]:
    """Return conversations and what comes next in them: calls of the right form, the word asked for in half of them.

    Whoever learned from these does right in a quarter of its attempts, for ``echo`` is in half of the calls too.
    """
    made: list[tuple[list[dict[str, str]], str]] = []
    for asked in WORDS:
        for opening in OPENINGS:
            for word in (*WORDS, asked):
                call = f"{_CALL}{opening}{word}{_CLOSE}"
                made.append(([request(asked)], call))
                history = [request(asked), {"role": "assistant", "content": call}, {"role": "tool", "content": _ANSWER}]
                made.append((history, _DONE))
    return made
