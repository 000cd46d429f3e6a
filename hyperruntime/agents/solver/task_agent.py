"""The task agent: searches an answer of one problem, as its plan says."""

import json
import os
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # more threads cost more than they gain
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402 - reads the variables above
from plans import read_plan  # noqa: E402 - likewise
from problems import kind_of  # noqa: E402 - likewise
from search import Clock, search  # noqa: E402 - likewise

HERE = Path(__file__).resolve().parent


class TaskAgent:
    """Searches without a model; the contract requires both arguments."""

    def __init__(self, model=None, chat_history_file=None):
        self.chat_history_file = chat_history_file

    def forward(self, inputs):
        """Return ``(answer, history)`` for the inputs ``{"name", "seed", "cpu_s"}``.

        The history has the best answers and what each move cost and gained, for later generations.
        """
        started = time.process_time()
        name, kind = inputs["name"], kind_of(inputs["name"])
        plan = read_plan(HERE, name)
        rng = np.random.default_rng([int(inputs["seed"]), plan["seed"]])
        plan["size"] *= kind.size
        pool, log = search(kind, plan, Clock(started + float(inputs["cpu_s"])), rng)
        answers = [[merit, kind.answer(state)] for merit, state in pool.best]
        history = [{"problem": name, "moves": log, "answers": answers}]
        if self.chat_history_file:
            with Path(self.chat_history_file).open("a", encoding="utf-8") as file:
                file.write(json.dumps(history[0]) + "\n")
        return answers[0][1], history
