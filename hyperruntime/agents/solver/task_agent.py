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

        The history has the best answers, the chains to continue, and what each start and move cost
        and gained, for later generations. Random numbers follow from the seeds of the run, the plan
        and the inputs.
        """
        started = time.process_time()
        name, kind = inputs["name"], kind_of(inputs["name"])
        plan = read_plan(HERE, name)
        seeds = (inputs["seed"], os.environ.get("HYPERRUN_SEED") or 0, plan["seed"])
        rng = np.random.default_rng([int(seed) for seed in seeds])
        plan["size"] *= kind.size
        pool, log = search(kind, plan, Clock(started + float(inputs["cpu_s"])), rng)
        answers = [[merit, kind.answer(state), chain] for merit, state, chain in pool.best]
        chains = [[one["name"], kind.answer(one["state"]), one["fails"]] for one in pool.chains]
        history = [{"problem": name, "moves": log, "answers": answers, "chains": chains}]
        if self.chat_history_file:
            with Path(self.chat_history_file).open("a", encoding="utf-8") as file:
                file.write(json.dumps(history[0]) + "\n")
        return answers[0][1], history
