"""Train a transformer on random tokens, and print the tokens per second as JSON; needs torch.

python3 tokens.py small|large cpu|cuda
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

TOKENS = 32_768


def main(size: str, device: str) -> None:
    """Print the figure of the last steps."""
    width, layers, batch, length, steps = (
        (768, 12, 16, 512, 30) if size == "large" else (64, 1, 4, 32, 5)
    )
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(TOKENS, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, TOKENS)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(TOKENS, (batch, length), device=device)
    started = 0.0
    for step in range(2 * steps):
        if step == steps:
            wait(device)
            started = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wait(device)
    speed = steps * batch * length / (time.perf_counter() - started)
    weights = sum(one.numel() for one in model.parameters())
    print(json.dumps({"tokens_per_s": speed, "weights": weights, "torch": torch.__version__}))


def wait(device: str) -> None:
    """Wait until the GPU did what it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
