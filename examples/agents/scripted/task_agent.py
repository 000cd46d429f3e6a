"""Answers by rules that a person wrote: walks in worlds, and compares a few words of texts."""

import babyai
import nethack
import texts


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        self.player = None

    def forward(self, inputs):
        if "actions" not in inputs:
            return texts.answer(inputs), []
        if self.player is None:
            self.player = (babyai if "toggle" in inputs["actions"] else nethack).Player()
        return self.player.act(inputs), []
