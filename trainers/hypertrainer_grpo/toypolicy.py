"""The policy for the toy task, trained on demonstrations that are right half of the time. Imports torch."""

from __future__ import annotations

from hypertrainer_grpo.policy import TinyPolicy
from hypertrainer_grpo.toy import VOCABULARY, demonstrations
from hypertrainer_grpo.warmup import warm_up

_TOOLS = ({"type": "function", "function": {"name": "bash"}},)


class ToyPolicy(TinyPolicy):
    """A tiny policy after training on demonstrations; the same seed gives the same policy."""

    def __init__(self, *, seed: int = 0) -> None:
        """Create the policy and train it on the demonstrations, which takes a second or two."""
        super().__init__(VOCABULARY, name="toy", seed=seed)
        shown = [(messages, self.tokenizer.encode(text)) for messages, text in demonstrations()]
        warm_up(self, shown, _TOOLS)
