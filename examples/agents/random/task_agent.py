"""Answers at random: one of the actions of a turn, or one of the labels of a table. Files stay."""

import json
import random

LABELS = {
    "paper_text": ("accept", "reject"),
    "messages_a": ("model_a", "model_b", "tie"),
    "student_answer": ("incorrect", "partial", "almost", "correct"),
    "message": ("low", "medium", "high"),
}


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        self.choices = None

    def forward(self, inputs):
        if self.choices is None:  # the same choices in each run, others in each task
            self.choices = random.Random(json.dumps(inputs, sort_keys=True))
        if "files" in inputs:
            return {"files": inputs["files"]}, []  # as they are
        labels = next((some for name, some in LABELS.items() if name in inputs), ("",))
        return self.choices.choice(inputs.get("actions", labels)), []
