"""Train a model, or ask it, inside a container; needs torch, and nothing of this project.

``train`` reads ``tokens.bin`` and prints the weights. ``ask`` reads ``weights.bin`` and
``contexts.bin`` and prints the logits of the token after each context. Both print one line of
base64, and import ``train.py``, the agent's program.

Processor seconds are limited by the kernel. With a filter the program cannot start a process, which
would have a limit of its own.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# for the import of the program before, and for writing the result after the budget
_GRACE_S = 3
_AT_ONCE = 250
_NO_NEW_PRIVILEGES = 38
_SET_SECCOMP = 22
_FILTER = 2


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def main() -> None:
    """Do what the arguments ask for: a verb, processor seconds, numbers of symbols and of tokens of
    a context, and a filter for system calls in hexadecimal digits.
    """
    verb, seconds, symbols, context, lines = sys.argv[1:]
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _forbid(bytes.fromhex(lines))
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    end = time.process_time() + float(seconds)
    limit = math.ceil(end) + _GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
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
    output.write(base64.b64encode(result))
    output.flush()
    os._exit(0)


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return weights as a line of JSON with their shapes, and their values as float32."""
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    values = b"".join(
        tensor.detach().cpu().float().contiguous().numpy().tobytes() for tensor in state.values()
    )
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
        parts = [model(part)[:, -1].float().cpu() for part in contexts.split(_AT_ONCE)]
    return bytes(torch.cat(parts).contiguous().numpy().tobytes())


def _read(name: str) -> Any:  # noqa: ANN401
    import torch

    return torch.frombuffer(bytearray(Path(name).read_bytes()), dtype=torch.uint8).long()


def _forbid(lines: bytes) -> None:
    """Install a filter for system calls; none if ``lines`` is empty."""
    if not lines:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Filter(len(lines) // 8, lines)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        sys.exit(f"the filter for system calls cannot be set: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
