"""The loss of a model, from the logits that its program printed; the host computes it."""

from __future__ import annotations

import math
from array import array

from hyperdomain_speedrun.corpus import ALPHABET
from hyperdomain_training import decode

_FLOAT_BYTES = 4


def mean_loss(printed: bytes, answers: bytes) -> float | None:
    """Return the mean cross-entropy in nats per character; None if the logits are not valid.

    The softmax is taken here, so any finite numbers are probabilities with the sum 1.

    Args:
        printed: base64 of (len(answers), len(ALPHABET)) float32, little-endian.
        answers: the token after each context.
    """
    data = decode(printed)
    if data is None or len(data) != _FLOAT_BYTES * len(ALPHABET) * len(answers):
        return None
    logits = array("f", data)
    if not all(map(math.isfinite, logits)):
        return None
    losses = (
        _loss(logits[len(ALPHABET) * at : len(ALPHABET) * (at + 1)], answer)
        for at, answer in enumerate(answers)
    )
    return math.fsum(losses) / len(answers)


def _loss(row: array[float], answer: int) -> float:
    highest = max(row)
    return math.log(math.fsum(math.exp(one - highest) for one in row)) + highest - row[answer]
