"""Group relative policy optimisation (GRPO): one update of a policy from scored groups. Imports
torch.

Source: arXiv:2402.03300, equations 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor, nn

from hyperruntime.errors import SpecError
from hyperruntime.option_fields import ABOVE_ZERO, NOT_NEGATIVE, AtLeast
from hyperruntime.rollout.training_data.samples import Sample, ScoredGroup
from hypertrainer_grpo.sampling import sequence_logprobs


@attrs.frozen(kw_only=True)
class GrpoConfig:
    """Options of an update.

    Attributes:
        learning_rate: learning rate of Adam.
        clip: importance ratios are clipped to [1 - clip, 1 + clip].
        kl_weight: weight of the KL divergence from the reference policy; 0 needs no reference.
        epochs: passes over the groups of an update.
        max_grad_norm: maximum gradient norm; larger gradients are scaled down.
    """

    learning_rate: float = attrs.field(default=3e-3, validator=ABOVE_ZERO)
    clip: float = attrs.field(default=0.2, validator=ABOVE_ZERO)
    kl_weight: float = attrs.field(default=0.0, validator=NOT_NEGATIVE)
    epochs: int = attrs.field(default=1, validator=AtLeast(1))
    max_grad_norm: float = attrs.field(default=1.0, validator=ABOVE_ZERO)


@attrs.frozen
class Batch:
    """Samples as tensors; shape (n, t) means samples by positions.

    Attributes:
        sequences: token ids, not padded.
        mask: (n, t) float64; 1 for tokens that the policy emitted, except at position 0.
        old: (n, t) float64; log probabilities at sampling time, 0 where the mask is 0.
        advantages: (n,) float64.
        temperature: sampling temperature of all samples.
    """

    sequences: list[list[int]]
    mask: Tensor
    old: Tensor
    advantages: Tensor
    temperature: float

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup]) -> Batch:
        """Return all samples of groups as one batch; every sample needs log probabilities.

        Raises:
            SpecError: the groups have different temperatures.
        """
        temperatures = {group.temperature for group in groups}
        if len(temperatures) != 1:
            raise SpecError(
                "temperature", sorted(temperatures), "the same in all groups of an update"
            )
        samples = [sample for group in groups for sample in group.samples]
        return cls(
            sequences=[list(sample.segment.ids) for sample in samples],
            mask=_rows([_mask(sample) for sample in samples]),
            old=_rows([_old(sample) for sample in samples]),
            advantages=torch.tensor([sample.advantage for sample in samples], dtype=torch.float64),
            temperature=temperatures.pop(),
        )


def _mask(sample: Sample) -> list[float]:
    # The first token has no context, so it has no probability.
    return [0.0, *map(float, sample.segment.mask[1:])]


def _old(sample: Sample) -> list[float]:
    return [
        value or 0.0 if mask else 0.0
        for value, mask in zip(sample.segment.logprobs, _mask(sample), strict=True)
    ]


def _rows(rows: list[list[float]]) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.float64) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[ScoredGroup],
    config: GrpoConfig,
    reference: nn.Module | None = None,
) -> dict[str, float]:
    """Update the network from scored groups; return metrics, measured in the first pass before any
    change.

    Args:
        network: the network of the policy; it is changed.
        optimizer: optimizer of its parameters.
        groups: groups with log probabilities and one temperature.
        config: options of the update.
        reference: network of the reference policy; None, or ``kl_weight`` 0, means no KL term.

    Raises:
        SpecError: the groups have different temperatures.
    """
    batch = Batch.of(groups)
    distant = None
    if config.kl_weight and reference is not None:
        with torch.no_grad():
            distant = sequence_logprobs(reference, batch.sequences, batch.temperature)
    metrics: dict[str, float] = {}
    for _ in range(config.epochs):
        loss, facts = _loss(network, batch, config, distant)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        optimizer.step()
        metrics = metrics or {**facts, "grad_norm": float(norm)}
    rewards = [reward for group in groups for reward in group.rewards]
    return {"reward": sum(rewards) / len(rewards), "tokens": float(batch.mask.sum()), **metrics}


def _loss(
    network: nn.Module, batch: Batch, config: GrpoConfig, distant: Tensor | None
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss and metrics; the loss is the mean over samples of the mean over their emitted
    tokens.
    """
    now = sequence_logprobs(network, batch.sequences, batch.temperature)
    ratio = torch.exp((now - batch.old) * batch.mask)
    gain = batch.advantages[:, None]
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    objective = torch.minimum(ratio * gain, clipped * gain)
    facts = {
        "ratio_error": float((ratio.detach() - 1).abs().max()),
        "clipped": _mean(((ratio - clipped).abs() > 0).double(), batch.mask),
    }
    if distant is not None:
        difference = (distant - now) * batch.mask
        kl = torch.exp(difference) - difference - 1
        objective = objective - config.kl_weight * kl
        facts["kl"] = _mean(kl.detach(), batch.mask)
    each = (objective * batch.mask).sum(dim=1) / batch.mask.sum(dim=1).clamp(min=1)
    loss = -each.mean()
    return loss, {"loss": float(loss.detach()), **facts}


def _mean(values: Tensor, mask: Tensor) -> float:
    return float((values * mask).sum() / mask.sum().clamp(min=1))
