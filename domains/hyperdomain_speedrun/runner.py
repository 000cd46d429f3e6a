"""Train a model, or ask it, inside a container; needs torch, and ``inside.py`` of this project.

``train`` reads ``tokens.bin`` and prints the weights. ``ask`` reads ``weights.bin`` and
``contexts.bin`` and prints the logits of the token after each context. Both print one line of
base64, and import ``train.py``, the agent's program.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperdomain_training import inside

if TYPE_CHECKING:
    from collections.abc import Mapping

_AT_ONCE = 250


def main() -> None:
    """Do what the arguments ask for: a verb, processor seconds, numbers of symbols and of tokens of
    a context, and a filter for system calls in hexadecimal digits.
    """
    verb, seconds, symbols, context, lines = sys.argv[1:]
    output = inside.take_output()
    inside.forbid(lines)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    end = inside.limit(float(seconds))
    sys.path.insert(0, os.getcwd())
    program = importlib.import_module("train")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = program.build(int(symbols)).to(device)
    if verb == "train":
        program.train(model, _read("tokens.bin").to(device), lambda: end - time.process_time())
        result = to_bytes(model.state_dict())
    else:
        model.load_state_dict(from_bytes(Path("weights.bin").read_bytes()))
        contexts = _read("contexts.bin").to(device).reshape(-1, int(context))
        result = _ask(model.eval(), contexts)
    inside.write(output, result)


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return weights as a line of JSON with their shapes, and their values as float32."""
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    values = b"".join(map(inside.to_bytes, state.values()))
    return json.dumps(shapes).encode() + b"\n" + values


def from_bytes(data: bytes) -> dict[str, Any]:
    """Return the weights that :func:`to_bytes` wrote."""
    import torch

    head, values = data.split(b"\n", 1)
    state = {}
    for name, shape in json.loads(head).items():
        size = 4 * math.prod(shape)
        part = torch.frombuffer(bytearray(values[:size]), dtype=torch.float32) if size else None
        state[name] = torch.zeros(shape) if part is None else part.reshape(shape)
        values = values[size:]
    return state


def _ask(model: Any, contexts: Any) -> bytes:  # noqa: ANN401 - torch is not installed everywhere
    import torch

    with torch.no_grad():
        parts = [model(part)[:, -1] for part in contexts.split(_AT_ONCE)]
    return inside.to_bytes(torch.cat(parts))


def _read(name: str) -> Any:  # noqa: ANN401
    import torch

    return torch.frombuffer(bytearray(Path(name).read_bytes()), dtype=torch.uint8).long()


if __name__ == "__main__":
    main()
