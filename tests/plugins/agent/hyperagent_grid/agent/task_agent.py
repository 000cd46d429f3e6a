"""Answers a packing task with a grid of equal circles; they fill the grid if SIZE is 1."""

import math

from size import SIZE


class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        self.chat_history_file = chat_history_file

    def forward(self, inputs):
        side = math.ceil(math.sqrt(inputs["n"]))
        places = [((i % side + 0.5) / side, (i // side + 0.5) / side) for i in range(inputs["n"])]
        circles = [[x, y, SIZE / (2 * side)] for x, y in places]
        return circles, [{"role": "assistant", "content": f"a grid of {side} x {side}"}]
