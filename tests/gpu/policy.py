"""Policies of two sizes for `hyperrun rollout train`; the large one is on the GPU."""

from __future__ import annotations

from hypertrainer_grpo.policy import TinyPolicy
from hypertrainer_grpo.toy import VOCABULARY


class Small(TinyPolicy):
    """A tiny policy with random weights."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, name="small")


class Large(TinyPolicy):
    """A policy with 100 million random weights."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, name="large", width=2048)
        self.network.cuda()
