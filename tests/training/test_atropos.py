"""Groups pass through the real API server of atroposlib unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hyperruntime.errors import SpecError, TrainerError
from hyperruntime.rollout.run_files.record import Segment
from hyperruntime.rollout.training_data.samples import ScoredGroup, scored_group
from hyperruntime.rollout.training_data.scored_data import to_scored_data
from hyperruntime.trainers.atropos import Atropos
from hyperruntime.trainers.loading import load_trainer
from tests.training.atropos_server import TrainerApi, atropos_server, reset
from tests.unit.rollout.training_data.test_export import from_scored_data, make


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Yield the address of one server for all tests; each test registers its trainer again."""
    with atropos_server() as address:
        yield address


def group(item: str, size: int = 2, *, segments: int = 1, length: int = 4) -> ScoredGroup:
    """Return a group whose numbers differ from place to place."""
    start = len(item)
    parts = [
        [
            Segment(
                ids=[start + part + index + n for n in range(length)],
                mask=[int(n > 1) for n in range(length)],
                logprobs=[-1 / (3 + n + index) if n > 1 else None for n in range(length)],
            )
            for part in range(segments)
        ]
        for index in range(size)
    ]
    made = [make(item, index, index / 7, segments=part) for index, part in enumerate(parts)]
    return scored_group(made, temperature=0.9)


@asynccontextmanager
async def registered(
    url: str, batch_size: int, **options: Any
) -> AsyncIterator[tuple[TrainerApi, Atropos]]:
    """Yield a trainer that has asked for its first batch, and our side of the connection."""
    trainer = TrainerApi(url)
    ours = Atropos(url=url, environment="toy", wait_s=10, **options)
    try:
        reset(url)
        await trainer.register(batch_size=batch_size, max_token_len=64, num_steps=10)
        assert await trainer.batch() is None
        await ours.start()
        yield trainer, ours
    finally:
        await ours.close()
        await trainer.close()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine for at most a minute."""
    asyncio.run(asyncio.wait_for(coroutine, 60))


def test_a_batch_returns_our_groups_unchanged(url: str) -> None:
    """T3: /batch returns the tokens, masks, scores and inference log-probabilities that were
    submitted.
    """

    async def scenario() -> None:
        groups = [group("a"), group("bb")]
        async with registered(url, batch_size=4, group_size=2) as (trainer, ours):
            for each in groups:
                receipt = await ours.submit(each)
                assert receipt.accepted
                assert receipt.detail == ""
            assert (await trainer.status())["queue_size"] == 2
            batch = await trainer.batch()
            assert batch is not None
            assert (await trainer.status()) == {"current_step": 1, "queue_size": 0}
        for sent, got in zip(groups, batch, strict=True):
            want = to_scored_data(sent)
            assert {key: got[key] for key in want} == want
            assert [s.segment.logprobs for s in from_scored_data(got).samples] == [
                s.segment.logprobs for s in sent.samples
            ]

    run(scenario())


def test_a_large_group_is_sent_compressed_and_returns_unchanged(url: str) -> None:
    """Groups take megabytes; the server unpacks what we packed."""

    async def scenario() -> None:
        sent = group("long", length=20_000)
        async with registered(url, batch_size=2, group_size=2, max_token_length=20_000) as (
            trainer,
            ours,
        ):
            assert (await ours.submit(sent)).accepted
            batch = await trainer.batch()
        assert batch is not None
        assert {key: batch[0][key] for key in to_scored_data(sent)} == to_scored_data(sent)

    run(scenario())


def test_groups_that_the_server_could_never_use_are_declined(url: str) -> None:
    """Too many sequences, one that is too long, or none: the receipt says so, and the group is not
    sent.
    """

    async def scenario() -> None:
        async with registered(url, batch_size=2, group_size=2, max_token_length=4) as (
            trainer,
            ours,
        ):
            two = await ours.submit(group("a", segments=2))
            assert (two.accepted, "segments=last" in two.detail) == (False, True)
            long = await ours.submit(group("a", length=5))
            assert (long.accepted, "longer than" in long.detail) == (False, True)
            none = await ours.submit(group("a", segments=0))
            assert (none.accepted, "has a token record" in none.detail) == (False, True)
            assert (await trainer.status())["queue_size"] == 0
            half = await ours.submit(group("a", size=1))
            assert (half.accepted, "held by the server" in half.detail) == (True, True)

    run(scenario())


def test_an_environment_that_starts_before_the_trainer_waits_for_it(url: str) -> None:
    """The server accepts environments only after a trainer's first batch; we wait for that, for at
    most ``wait_s``.
    """

    async def scenario() -> None:
        trainer, early = TrainerApi(url), Atropos(url=url, wait_s=60)
        try:
            reset(url)
            await trainer.register(batch_size=2, max_token_len=64, num_steps=1, starting_step=3)
            with pytest.raises(TrainerError, match="no trainer started"):
                await Atropos(url=url, wait_s=0).start()
            starting = asyncio.ensure_future(early.start())
            await asyncio.sleep(0.3)
            assert not starting.done()
            assert await trainer.batch() is None
            assert await starting == 3
        finally:
            await early.close()
            await trainer.close()

    run(scenario())


def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    """The error names the address and the program to start, and shows no traceback."""

    async def scenario() -> None:
        ours = Atropos(url="http://127.0.0.1:9/")
        with pytest.raises(
            TrainerError, match=r"no atroposlib API server answers at http://127.0.0.1:9: .*run-api"
        ):
            await ours.start()
        with pytest.raises(TrainerError, match="after start"):
            await ours.submit(group("a"))
        await ours.close()

    run(scenario())
    with pytest.raises(SpecError, match="a whole number"):
        load_trainer("atropos", {"group_size": "many"})
    with pytest.raises(SpecError, match="group_size"):
        load_trainer("atropos", {"group_siz": "2"})
    with pytest.raises(SpecError, match="did you mean 'atropos'"):
        load_trainer("atrpos")


def test_a_refusal_is_reported_in_the_servers_words(url: str) -> None:
    """The server answers HTTP 422 to a message without content."""

    async def scenario() -> None:
        api = TrainerApi(url)
        refused = {**to_scored_data(group("a")), "messages": [[{"role": "user"}]], "env_id": None}
        try:
            with pytest.raises(TrainerError, match=r"HTTP 422.*role"):
                await api.call("POST", "/scored_data", refused)
        finally:
            await api.close()

    run(scenario())
