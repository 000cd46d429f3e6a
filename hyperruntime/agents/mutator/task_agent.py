"""The task agent: answers a packing task by the packing program."""

import json
from pathlib import Path

from packing import pack


class TaskAgent:
    """Packs circles without a model; the contract requires both arguments."""

    def __init__(self, model=None, chat_history_file=None):
        self.model = model
        self.chat_history_file = chat_history_file

    def forward(self, inputs):
        """Return ``(circles, history)`` for the inputs ``{"n", "seed", "work",
        "time_limit_s"}``.
        """
        circles = pack(
            int(inputs["n"]),
            inputs.get("seed", 0),
            int(inputs.get("work", 1_000_000)),
            float(inputs.get("time_limit_s", 10.0)),
        )
        history = [{"task": dict(inputs), "sum_of_radii": sum(circle[2] for circle in circles)}]
        if self.chat_history_file:
            with Path(self.chat_history_file).open("a", encoding="utf-8") as file:
                file.write(json.dumps(history[0]) + "\n")
        return circles, history
