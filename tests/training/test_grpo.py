"""A policy that learns: its samples, their log-probabilities, and the direction of its updates."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import SpecError, TrainerError
from hyperruntime.rollout.run_files.record import Segment, Trajectory
from hyperruntime.rollout.training_data.samples import ScoredGroup, scored_group
from hypertrainer_grpo.grpo import Batch, GrpoConfig, update
from hypertrainer_grpo.learner import Learner, list_checkpoints
from hypertrainer_grpo.policy import SPECIALS, TinyPolicy, Tokenizer
from hypertrainer_grpo.sampling import draw, sequence_logprobs
from hypertrainer_grpo.trainer import Grpo
from tests.training.weights import importance_ratios, parameters_of
from tests.unit.rollout.training_data.test_export import make

WORDS = ("yes", "no", "perhaps")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@given(st.text(), st.lists(st.text(min_size=1), max_size=5))
def test_any_text_survives_encoding_and_decoding(text: str, words: list[str]) -> None:
    """Bytes stand for all text that is not a word; no text becomes a special token."""
    tokenizer = Tokenizer(words)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(len(SPECIALS) <= token < tokenizer.size for token in ids)
    assert all(token >= len(SPECIALS) for token in tokenizer.encode("".join(SPECIALS)))


def policy(seed: int = 0) -> TinyPolicy:
    """Return a small policy."""
    return TinyPolicy(WORDS, width=32, context=32, seed=seed)


def trajectory(index: int, reward: float, segment: Segment) -> Trajectory:
    """Return a scored trajectory of the item ``i``."""
    return make("i", index, reward, segments=[segment])


def drawn_group(
    one: TinyPolicy, wanted: str, size: int, seed: int, temperature: float = 1.0
) -> ScoredGroup:
    """Return a group drawn from a policy, with reward 1 if the first token is the wanted word."""
    generator = torch.Generator().manual_seed(seed)
    prompt = one.render([{"role": "user", "content": "?"}], ())
    trajectories = []
    for index in range(size):
        drawn = draw(
            one.network,
            prompt,
            end_id=one.end_id,
            most=1 + index % 3,
            temperature=temperature,
            generator=generator,
        )
        segment = Segment(
            ids=[*prompt, *drawn.ids],
            mask=[*[0] * len(prompt), *[1] * len(drawn.ids)],
            logprobs=[*[None] * len(prompt), *drawn.logprobs],
        )
        reward = float(drawn.ids[0] == one.tokenizer.encode(wanted)[0])
        trajectories.append(trajectory(index, reward, segment))
    return scored_group(trajectories, temperature=temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_the_unchanged_policy_has_importance_ratio_one(temperature: float) -> None:
    """T3: log-probabilities noted at sampling equal those computed in one batch, for sequences of
    several lengths.
    """
    one = policy()
    group = drawn_group(one, "yes", 12, seed=1, temperature=temperature)
    batch = Batch.of([group])
    ratios = importance_ratios(one.network, batch)
    assert float((ratios - 1).abs().max()) < 1e-4
    assert float(batch.mask.sum()) > 12
    with torch.no_grad():
        for parameter in one.network.parameters():
            parameter.mul_(1.1)
    assert float((importance_ratios(one.network, batch) - 1).abs().max()) > 1e-2


def test_padding_changes_nothing_and_probabilities_sum_to_one() -> None:
    """A sequence is as likely alone as beside a longer one; the probabilities of all next tokens
    add up to 1.
    """
    network = policy().network
    short, long = [3, 9, 7], [3, 9, 7, 2, 2, 2, 8]
    alone = sequence_logprobs(network, [short], 1.0)[0]
    beside = sequence_logprobs(network, [short, long], 1.0)[0]
    assert torch.allclose(alone, beside[:3], atol=1e-5)
    assert beside[3:].abs().sum() == 0
    size = policy().tokenizer.size
    whole = sequence_logprobs(network, [[3, token] for token in range(size)], 1.0)[:, 1]
    assert math.isclose(float(whole.detach().exp().sum()), 1.0, abs_tol=1e-9)


@pytest.mark.slow
def test_an_update_makes_the_better_answer_more_likely() -> None:
    """arXiv:2402.03300: the update follows the sign of the advantages."""
    one = policy()
    prompt = one.render([{"role": "user", "content": "?"}], ())
    (yes,), (no,) = one.tokenizer.encode("yes"), one.tokenizer.encode("no")
    samples = [(yes, 1.0), (no, 0.0), (yes, 1.0), (no, 0.0)]
    before = sequence_logprobs(one.network, [[*prompt, yes], [*prompt, no]], 1.0)[:, -1].detach()
    mask, nothing = [*[0] * len(prompt), 1], [None] * len(prompt)
    logprobs = {yes: float(before[0]), no: float(before[1])}
    group = scored_group(
        [
            trajectory(
                n,
                reward,
                Segment(ids=[*prompt, token], mask=mask, logprobs=[*nothing, logprobs[token]]),
            )
            for n, (token, reward) in enumerate(samples)
        ]
    )
    optimizer = torch.optim.Adam(one.network.parameters(), lr=1e-3)
    metrics = update(one.network, optimizer, [group], GrpoConfig(epochs=4))
    after = sequence_logprobs(one.network, [[*prompt, yes], [*prompt, no]], 1.0)[:, -1].detach()
    assert after[0] > before[0] + 1e-3
    assert after[1] < before[1] - 1e-3
    assert metrics["reward"] == 0.5
    assert metrics["tokens"] == 4
    assert metrics["ratio_error"] < 1e-4


def test_tokens_far_from_the_sampling_policy_are_clipped() -> None:
    """A token whose probability has already moved far in the wanted direction gives no gradient."""
    one = policy()
    group = drawn_group(one, "yes", 4, seed=2)
    stale = []
    for n, sample in enumerate(group.samples):
        far = 3.0 if n < 2 else -3.0
        logprobs = [None if value is None else value - far for value in sample.segment.logprobs]
        stale.append(trajectory(n, float(n < 2), attrs.evolve(sample.segment, logprobs=logprobs)))
    before = parameters_of(one)
    optimizer = torch.optim.SGD(one.network.parameters(), lr=0.1)
    metrics = update(one.network, optimizer, [scored_group(stale)], GrpoConfig())
    assert metrics["clipped"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters_of(one), strict=True))


def test_the_kl_term_pulls_the_policy_towards_the_reference() -> None:
    """With equal rewards, only the KL term moves the policy."""
    one, reference = policy(0), policy(1)
    group = drawn_group(one, "yes", 6, seed=3)
    equal = scored_group(
        [trajectory(n, 1.0, sample.segment) for n, sample in enumerate(group.samples)]
    )
    optimizer = torch.optim.Adam(one.network.parameters(), lr=1e-3)
    config = GrpoConfig(kl_weight=1.0, epochs=1)
    distances = [
        update(one.network, optimizer, [equal], config, reference.network)["kl"] for _ in range(10)
    ]
    assert distances[-1] < distances[0]
    assert all(distance >= 0 for distance in distances)


def test_invalid_settings_are_refused() -> None:
    """The error names the setting."""
    with pytest.raises(SpecError, match="learning_rate"):
        GrpoConfig(learning_rate=0)
    with pytest.raises(SpecError, match="kl_weight"):
        GrpoConfig(kl_weight=-1)
    groups = [drawn_group(policy(), "yes", 2, seed=0, temperature=t) for t in (1.0, 0.5)]
    with pytest.raises(SpecError, match="temperature"):
        Batch.of(groups)


def learn(directory: Path, steps: int, config: GrpoConfig) -> Learner:
    """Return a learner at step ``steps``, resumed from the checkpoints in ``directory`` if there
    are any.
    """
    learner = Learner(policy(), config, directory)
    learner.resume()
    while learner.step < steps:
        assert isinstance(learner.policy, TinyPolicy)
        learner.update([drawn_group(learner.policy, "no", 4, seed=learner.step)])
    return learner


@pytest.mark.parametrize("kl_weight", [0.0, 0.1])
def test_an_interrupted_training_continues_exactly(tmp_path: Path, kl_weight: float) -> None:
    """Six steps at once, or three and then three in a new learner, give the same weights to the
    last bit.
    """
    config = GrpoConfig(kl_weight=kl_weight)
    whole = learn(tmp_path / "whole", 6, config)
    learn(tmp_path / "parts", 3, config)
    parts = learn(tmp_path / "parts", 6, config)
    assert all(
        torch.equal(a, b)
        for a, b in zip(parameters_of(whole.policy), parameters_of(parts.policy), strict=True)
    )
    assert [path.name for path in list_checkpoints(tmp_path / "parts")] == [
        f"step-00000{n}.pt" for n in (4, 5, 6)
    ]


def test_a_training_killed_before_its_first_update_keeps_its_initial_weights(
    tmp_path: Path,
) -> None:
    """The trajectories recorded by then come from these weights."""
    seeds = iter((1, 2))

    async def begun() -> list[torch.Tensor]:
        trainer = Grpo(directory=str(tmp_path), policy=lambda: policy(next(seeds)))
        assert await trainer.start() == 0
        found = [one.detach().clone() for one in parameters_of(trainer.learner.policy)]
        await trainer.close()
        return found

    first, second = asyncio.run(begun()), asyncio.run(begun())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_unusable_checkpoint_is_reported_in_one_sentence(tmp_path: Path) -> None:
    """The error names a truncated checkpoint or one of another network; half-written files are
    ignored.
    """
    learn(tmp_path, 1, GrpoConfig())
    (path,) = list_checkpoints(tmp_path)
    other = Learner(TinyPolicy(WORDS, width=64), GrpoConfig(), tmp_path)
    with pytest.raises(TrainerError, match="belongs to another policy"):
        other.resume()
    with pytest.raises(TrainerError, match="has no reference policy"):
        Learner(policy(), GrpoConfig(kl_weight=0.1), tmp_path).resume()
    (tmp_path / f".step-000009.pt.{1}").write_bytes(b"half")
    assert list_checkpoints(tmp_path) == [path]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainerError, match="cannot be read as a checkpoint"):
        Learner(policy(), GrpoConfig(), tmp_path).resume()
