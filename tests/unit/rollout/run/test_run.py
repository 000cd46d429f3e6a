"""Runs of rollouts with a fake model, environment and slots: resuming, failures, cancellation,
records.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.cli.rollout.progress import BarDisplay, PlainDisplay
from hyperruntime.errors import (
    ArchiveError,
    ModelError,
    RunError,
    RunLockedError,
    SandboxLostError,
    SpecError,
)
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.rollout.agent.agent import AgentLimits, Tools
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.rollout.run.progress import RolloutEvent
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run.store import RunStore, resumable_options
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    RESULTS,
    TRAJECTORIES,
    read_groups,
    read_trajectories,
)
from hyperruntime.rollout.training_data.export import ExportOptions, export_groups, export_run


class FakeSlots:
    """Slots without containers; counts the leases."""

    capacity = 100

    def __init__(self) -> None:
        self.held = self.given = 0

    @asynccontextmanager
    async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Any]:
        self.held += 1
        self.given += 1
        try:
            yield self
        finally:
            self.held -= 1  # like a pool's release: no await before it
            await asyncio.sleep(0)

    fresh = lease

    async def end_processes(self) -> None: ...


class OneWordModel:
    """A model that says one word, derived from the seed."""

    name = "says"

    def __init__(self, wait: Callable[[], Any] = lambda: asyncio.sleep(0)) -> None:
        self.seeds: list[int | None] = []
        self._wait = wait

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        self.seeds.append(sampling.seed)
        await self._wait()
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        prompt, ids = (1, 2, 3), (4, (sampling.seed or 0) % 100)
        message = {"role": "assistant", "content": f"word \udc80 {sampling.seed}"}
        return Completion(
            message=message,
            finish_reason="stop",
            usage=usage,
            prompt_ids=prompt,
            ids=ids,
            logprobs=(-0.5, -0.25),
        )

    async def close(self) -> None: ...


@attrs.define
class World:
    """An environment with scripted failures and rewards."""

    count: int = 3
    fails: Callable[[str, int], Exception | None] = lambda item, attempt: None
    rewards: Callable[[str, int], float] = lambda item, attempt: 1.0
    attempts: dict[str, int] = attrs.field(factory=dict)
    name: str = "world"

    def items(self) -> Iterable[Item]:
        return [Item(id=f"i{number}") for number in range(self.count)]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Any) -> Mapping[str, Any]:
        return {"item": item.id}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": f"do {meta['item']}"}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Any, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        attempt = self.attempts[item.id] = self.attempts.get(item.id, 0) + 1
        if (error := self.fails(item.id, attempt)) is not None:
            raise error
        async with fresh():
            reward = self.rewards(item.id, attempt)
            return Verdict(reward=reward, parts={"all": reward}, phase="tests", detail="so")


class _Runtime:
    images = None


def options(**given: Any) -> RolloutOptions:
    return RolloutOptions(
        **{"environment": "world", "seed": 1, "group_size": 2, "parallel": 3, "tools": (), **given}
    )


def made(world: World, model: OneWordModel, slots: FakeSlots) -> Parts:
    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return "{}"

    tools = Tools(schemas=(), handler=handle)
    return Parts(
        environment=cast(Any, world),
        model=model,
        slots=cast(Any, slots),
        toolset=lambda lease: tools,
    )


def rollouts(
    world: World,
    run_dir: Path | None = None,
    *,
    slots: FakeSlots | None = None,
    model: OneWordModel | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Callable[[Trajectory], None] = lambda _: None,
    **given: Any,
) -> RolloutSummary:
    parts = made(world, model or OneWordModel(), slots or FakeSlots())
    runtime = cast(hr.Runtime, _Runtime())
    return asyncio.run(
        run_rollouts(
            runtime, options(**given), run_dir=run_dir, parts=parts, on_event=on_event, keep=keep
        )
    )


def test_a_run_records_one_line_per_trajectory_and_per_group(tmp_path: Path) -> None:
    summary = rollouts(World(rewards=lambda item, attempt: float(attempt % 2)), tmp_path / "run")
    found = read_trajectories(tmp_path / "run")
    assert sorted(t.id for t in found) == [f"i{n}/{k}" for n in range(3) for k in range(2)]
    first = found[0]
    assert (first.status, first.stop_reason, first.turns, first.attempts) == (
        "scored",
        "finished",
        1,
        1,
    )
    assert first.verdict == {"phase": "tests", "detail": "so", "facts": {}}
    assert first.messages[0] == {"role": "user", "content": f"do {first.item_id}"}
    assert {"acquire_s", "setup_s", "model_s", "verify_s", "release_s", "total_s"} <= set(
        first.timing
    )
    assert [list(s.mask) for s in first.segments] == [[0, 0, 0, 1, 1]]
    groups = read_groups(tmp_path / "run")
    assert sorted(g.item_id for g in groups) == ["i0", "i1", "i2"]
    assert sorted(groups[0].rewards) == [0.0, 1.0]  # type: ignore[type-var]
    assert sum(value for value in groups[0].advantages if value is not None) == pytest.approx(0)
    assert (summary.scored, summary.wanted, summary.mean_reward, summary.groups) == (6, 6, 0.5, 3)


def test_record_files_are_valid_utf8_for_any_text_of_a_model(tmp_path: Path) -> None:
    rollouts(World(count=1), tmp_path)
    for line in (tmp_path / TRAJECTORIES).read_bytes().splitlines():
        assert "word ?" in json.loads(line.decode("utf-8"))["messages"][1]["content"]


@pytest.mark.parametrize(("whole", "cut"), [(0, 0), (0, 1), (0, 100), (2, 300), (6, 0), (5, -1)])
def test_a_run_killed_at_any_byte_is_resumed_without_loss_or_duplicates(
    tmp_path: Path, whole: int, cut: int
) -> None:
    rollouts(World(), tmp_path)
    path = tmp_path / TRAJECTORIES
    lines = path.read_bytes().splitlines(keepends=True)
    torn = b"".join(lines[whole:])[:cut] if cut >= 0 else lines[whole][:-1]
    whole += cut < 0  # only its newline is missing
    path.write_bytes(b"".join(lines[: whole - (cut < 0)]) + torn)
    (tmp_path / GROUPS).write_bytes(b'{"torn')
    again: list[str] = []
    summary = rollouts(World(), tmp_path, keep=lambda trajectory: again.append(trajectory.id))
    assert len(again) == 6 - whole
    assert summary.resumed == whole
    ids = [t.id for t in read_trajectories(tmp_path)]
    assert sorted(ids) == [f"i{n}/{k}" for n in range(3) for k in range(2)]
    good = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    assert len(good) == 6
    assert len(read_groups(tmp_path)) == 3


def test_resuming_a_finished_run_does_nothing(tmp_path: Path) -> None:
    rollouts(World(), tmp_path)
    before = (tmp_path / TRAJECTORIES).read_bytes()
    summary = rollouts(World(), tmp_path)
    assert (summary.resumed, summary.scored) == (6, 6)
    assert (tmp_path / TRAJECTORIES).read_bytes() == before


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pause before a retry almost zero."""
    monkeypatch.setattr("hyperruntime.rollout.run.scheduler._RETRY_S", 0.01)


@pytest.mark.usefixtures("no_pause")
def test_w23_infrastructure_failures_are_retried_and_recorded_and_are_never_rewards(
    tmp_path: Path,
) -> None:
    def fails(item: str, attempt: int) -> Exception | None:
        if item == "i0" or (item == "i1" and attempt == 1):
            return SandboxLostError("the container ended")
        return None

    summary = rollouts(World(fails=fails), tmp_path, group_size=1, attempts=2)
    found = {t.id: t for t in read_trajectories(tmp_path)}
    lost = found["i0/0"]
    assert (lost.status, lost.reward, lost.attempts) == ("infrastructure", None, 2)
    assert lost.error == {
        "kind": "SandboxLostError",
        "message": "the container ended",
        "phase": "verify",
    }
    assert lost.messages, "the messages of the agent must be kept"
    assert (found["i1/0"].status, found["i1/0"].reward, found["i1/0"].attempts) == (
        "scored",
        1.0,
        2,
    )
    assert (summary.scored, summary.infrastructure, summary.mean_reward) == (2, 1, 1.0)
    assert summary.errors == {"SandboxLostError": 1}
    group = {g.item_id: g for g in read_groups(tmp_path)}["i0"]
    assert (group.complete, list(group.rewards), list(group.advantages)) == (False, [None], [None])


@pytest.mark.usefixtures("no_pause")
def test_w23_a_container_that_a_limit_ended_gives_no_reward(tmp_path: Path) -> None:
    """The watchdog also ends containers when the host's disk is full, or when others filled a
    shared disk.
    """

    async def lost() -> None:
        raise SandboxLostError("the container of slot x is gone (it went past limits.disk_bytes=1)")

    rollouts(World(count=1), tmp_path, model=OneWordModel(wait=lost), group_size=1, attempts=2)
    (got,) = read_trajectories(tmp_path)
    assert (got.status, got.reward, got.attempts) == ("infrastructure", None, 2)
    assert "limits.disk_bytes" in (got.error or {})["message"]


def test_failed_trajectories_are_retried_only_on_request(tmp_path: Path) -> None:
    rollouts(World(fails=lambda item, attempt: OSError("gone")), tmp_path, attempts=1)
    assert rollouts(World(), tmp_path).scored == 0
    summary = rollouts(World(), tmp_path, retry_failed=True)
    assert (summary.scored, summary.infrastructure) == (6, 0)
    assert [t.status for t in read_trajectories(tmp_path)] == ["scored"] * 6
    assert all(group.complete for group in read_groups(tmp_path))


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", None])
def test_an_invalid_reward_is_an_infrastructure_failure(reward: Any) -> None:
    found: list[Trajectory] = []
    rollouts(World(count=1, rewards=lambda item, attempt: reward), keep=found.append, attempts=1)
    assert {t.status for t in found} == {"infrastructure"}
    assert "must be finite numbers" in (found[0].error or {})["message"]


def test_repeated_failures_end_the_run_with_their_cause(tmp_path: Path) -> None:
    world = World(count=50, fails=lambda item, attempt: OSError("disk full"))
    slots = FakeSlots()
    with pytest.raises(RunError, match="disk full"):
        rollouts(world, tmp_path, slots=slots, attempts=1, give_up_after=4)
    assert slots.held == 0
    assert 4 <= len(read_trajectories(tmp_path)) <= 4 + 3


@pytest.mark.usefixtures("no_pause")
def test_each_failed_attempt_counts_as_a_failure_in_a_row(tmp_path: Path) -> None:
    world = World(count=50, fails=lambda item, attempt: OSError("disk full"))
    with pytest.raises(RunError, match=r"failed 4 times in a row \(OSError: disk full\)"):
        rollouts(world, tmp_path, group_size=1, parallel=1, attempts=3, give_up_after=4)
    assert world.attempts == {"i0": 3, "i1": 1}
    assert [trajectory.attempts for trajectory in read_trajectories(tmp_path)] == [3, 1]


@pytest.mark.usefixtures("no_pause")
def test_an_attempt_without_a_failure_begins_the_count_anew(tmp_path: Path) -> None:
    world = World(count=20, fails=lambda item, attempt: OSError("gone") if attempt < 3 else None)
    assert rollouts(world, tmp_path, group_size=1, parallel=1, give_up_after=3).scored == 20


def test_the_default_count_is_at_least_twice_the_parallel_trajectories() -> None:
    assert [options(parallel=number).failures_allowed for number in (1, 10, 64)] == [20, 20, 128]
    assert options(parallel=64, give_up_after=5).failures_allowed == 5


def test_a_model_server_that_is_down_is_reported_before_a_container_or_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._REACH_S", 0)
    slots, run_dir = FakeSlots(), tmp_path / "run"
    parts = attrs.evolve(made(World(), OneWordModel(), slots), model=None)
    down = options(model=ModelOptions(name="m", base_url="http://127.0.0.1:9/v1"))
    runtime = cast(hr.Runtime, _Runtime())
    with pytest.raises(
        ModelError, match=r"no model server answers at http://127.0.0.1:9/v1 \(.*\); start it"
    ):
        asyncio.run(run_rollouts(runtime, down, run_dir=run_dir, parts=parts))
    assert (slots.given, run_dir.exists()) == (0, False)


def test_a_finished_run_needs_no_model_server(tmp_path: Path) -> None:
    given = options(model=ModelOptions(name="m", base_url="http://127.0.0.1:9/v1"))
    parts = made(World(), OneWordModel(), FakeSlots())
    runtime = cast(hr.Runtime, _Runtime())
    asyncio.run(run_rollouts(runtime, given, run_dir=tmp_path, parts=parts))
    again = asyncio.run(
        run_rollouts(runtime, given, run_dir=tmp_path, parts=attrs.evolve(parts, model=None))
    )
    assert again.scored == 6


def test_a_trajectory_that_fails_during_cancellation_is_not_recorded_and_not_retried(
    tmp_path: Path,
) -> None:
    async def wait() -> None:
        try:
            await asyncio.sleep(3600 if len(model.seeds) == 1 else 0)
        finally:
            if len(model.seeds) == 1:
                raise OSError("the connection is gone")

    model = OneWordModel(wait=wait)

    async def cancelled() -> None:
        parts = made(World(), model, FakeSlots())
        run = run_rollouts(
            cast(hr.Runtime, _Runtime()), options(parallel=1), run_dir=tmp_path, parts=parts
        )
        task = asyncio.create_task(run)
        while not model.seeds:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert len(model.seeds) == 1
    assert read_trajectories(tmp_path) == []


def test_r11_a_cancelled_run_releases_every_slot_and_records_no_partial_result(
    tmp_path: Path,
) -> None:
    slots, model = FakeSlots(), OneWordModel(wait=lambda: asyncio.sleep(3600))

    async def cancelled() -> None:
        parts = made(World(), model, slots)
        run = run_rollouts(cast(hr.Runtime, _Runtime()), options(), run_dir=tmp_path, parts=parts)
        task = asyncio.create_task(run)
        async with asyncio.timeout(60):
            while len(model.seeds) < 3:
                await asyncio.sleep(0.01)
        assert slots.held == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert slots.held == 0
    assert read_trajectories(tmp_path) == []
    assert rollouts(World(), tmp_path).scored == 6


def test_a_second_run_in_the_directory_of_a_running_one_is_rejected(tmp_path: Path) -> None:
    model = OneWordModel(wait=lambda: asyncio.sleep(3600))

    async def twice() -> None:
        parts = made(World(), model, FakeSlots())
        runtime = cast(hr.Runtime, _Runtime())
        first = asyncio.create_task(run_rollouts(runtime, options(), run_dir=tmp_path, parts=parts))
        async with asyncio.timeout(60):
            while not model.seeds:
                await asyncio.sleep(0.01)
        with pytest.raises(RunLockedError):
            await run_rollouts(runtime, options(), run_dir=tmp_path, parts=parts)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

    asyncio.run(twice())


def test_a_run_with_other_options_in_the_same_directory_is_rejected(tmp_path: Path) -> None:
    rollouts(World(), tmp_path)
    with pytest.raises(RunError, match="group_size=2, not 4"):
        rollouts(World(), tmp_path, group_size=4)
    os.unlink(tmp_path / "run.json")
    with pytest.raises(RunError, match=r"no run\.json"):
        rollouts(World(), tmp_path)


def test_a_run_knows_its_files_of_code_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "mine.py").write_text("async def work(episode): ...\n")
    monkeypatch.chdir(tmp_path / "here")
    begun = RunStore(tmp_path / "run").begin(
        options(environment="env.py:Env", agent="mine.py:work")
    )
    assert (begun.environment, begun.agent) == (
        f"{tmp_path}/here/env.py:Env",
        f"{tmp_path}/here/mine.py:work",
    )
    (tmp_path / "run").mkdir()
    RunStore(tmp_path / "run").keep_options(begun)
    again = options(environment="env.py:Env", agent="mine.py:work")
    assert RunStore(tmp_path / "run").begin(again) == begun, "--resume-or-start with the same words"
    monkeypatch.chdir(tmp_path / "there")
    assert resumable_options(tmp_path / "run", trust=False) == begun
    with pytest.raises(RunError, match=r"was started with environment='.*/here/env\.py:Env'"):
        RunStore(tmp_path / "run").begin(again)
    assert options(environment="swe", agent="package.module:work") == RunStore(
        tmp_path / "new"
    ).begin(options(environment="swe", agent="package.module:work"))


def test_seeds_depend_on_the_trajectory_and_not_on_the_order() -> None:
    def tokens(**given: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        rollouts(
            World(count=4), keep=lambda t: found.update({t.id: list(t.segments[0].ids)}), **given
        )
        return found

    one = tokens(parallel=1)
    assert one == tokens(parallel=8)
    assert one != tokens(parallel=1, seed=2)
    model = OneWordModel()
    rollouts(World(count=4), model=model)
    assert len(set(model.seeds)) == 8


def test_an_environment_may_check_all_chosen_items_before_anything_starts(tmp_path: Path) -> None:
    """No slot is leased and no directory is made if the run lacks something that an item needs."""

    class Needy(World):
        def check_items(self, items: Sequence[Item], base: hr.ContainerSpec) -> None:
            if base.network == "none":
                raise SpecError(
                    "network", "none", f"bridge, because of {[item.id for item in items]}"
                )

    slots = FakeSlots()
    with pytest.raises(SpecError, match=r"because of \['i1', 'i2'\]"):
        rollouts(Needy(), tmp_path / "run", slots=slots, items=["i1", "i2"])
    assert (slots.given, (tmp_path / "run").exists()) == (0, False)
    base = hr.ContainerSpec(image="x", network="bridge")
    assert rollouts(Needy(), tmp_path / "run", container=base).scored == 6


def test_items_are_selected_by_id_and_unknown_ids_are_rejected() -> None:
    found: list[str] = []
    rollouts(World(), items=["i2"], group_size=1, keep=lambda t: found.append(t.id))
    assert found == ["i2/0"]
    found.clear()
    rollouts(
        World(),
        items=["i[23]", "i1", "i*"],
        group_size=1,
        parallel=1,
        keep=lambda t: found.append(t.id),
    )
    assert found == ["i2/0", "i1/0", "i0/0"], (
        "each item once, in the order of the names and patterns"
    )
    for unknown in ("i22", "i2*2"):
        with pytest.raises(SpecError, match="did you mean 'i2'"):
            rollouts(World(), items=[unknown])
    with pytest.raises(SpecError, match="select none"):
        rollouts(World(count=0))


def test_the_tools_of_an_agent_get_its_own_lease_and_the_verification_gets_the_first() -> None:
    """So that the agent has fewer rights than the environment, which made its lease after
    ``setup``.
    """
    seen: list[tuple[str, Any]] = []

    class Users(World):
        async def agent_lease(self, item: Item, lease: Any, meta: Mapping[str, Any]) -> Any:
            return ("a user", meta["item"])

        async def verify(
            self, item: Item, outcome: Outcome, lease: Any, fresh: Fresh, meta: Any
        ) -> Verdict:
            seen.append(("verify", lease))
            return Verdict(reward=1.0)

    def toolset(lease: Any) -> Tools:
        seen.append(("tools", lease))
        return Tools(schemas=(), handler=cast(Any, None))

    slots = FakeSlots()
    parts = attrs.evolve(made(cast(Any, Users(count=1)), OneWordModel(), slots), toolset=toolset)
    asyncio.run(run_rollouts(cast(hr.Runtime, _Runtime()), options(group_size=1), parts=parts))
    assert seen == [("tools", ("a user", "i0")), ("verify", slots)]


def test_items_that_an_environment_left_out_are_counted_and_named() -> None:
    """In the summary; one that is chosen by its name is refused with the reason."""

    class Odd(World):
        left_out = {"odd-1": "it has two containers", "odd-2": "it has no tests"}  # noqa: RUF012 - of a test

    assert rollouts(Odd(), group_size=1).left_out == Odd.left_out
    assert rollouts(Odd(), group_size=1, items=["i1", "*1"]).left_out == {
        "odd-1": "it has two containers"
    }
    assert rollouts(Odd(), group_size=1, items=["i1"]).left_out == {}
    with pytest.raises(
        SpecError, match=r"'odd-2' is not allowed: a supported item: .*it has no tests"
    ):
        rollouts(Odd(), items=["odd-2"])


def test_options_survive_json_and_invalid_ones_are_rejected() -> None:
    chosen = options(
        environment_options={"items": "x"},
        model=ModelOptions(name="m", base_url="http://h/v1", extra={"top_p": 0.5}, key_env="KEY"),
        container=hr.ContainerSpec(
            image="localhost/x:1",
            env={"A": "1"},
            gpus=("0", "1"),
            mounts=(hr.Mount(source="/data", target="/data"),),
            limits=hr.Limits(memory_bytes=1 << 30),
        ),
        pool=PoolOptions(slots_per_container=4),
        limits=AgentLimits(turns=3, time_s=1.5),
        items=("a",),
    )
    assert from_json(RolloutOptions, json.loads(json.dumps(to_json(chosen))), strict=True) == chosen
    assert (
        from_json(RolloutOptions, json.loads(json.dumps(to_json(options()))), strict=True)
        == options()
    )
    with pytest.raises(ArchiveError):
        from_json(RolloutOptions, {"environment": "x", "colour": 1}, strict=True)
    with pytest.raises(SpecError, match="group_size"):
        options(group_size=0)


def test_an_item_may_have_a_shorter_time_limit_than_the_run() -> None:
    @attrs.define
    class Hasty(World):
        def time_limit_s(self, item: Item) -> float | None:
            return 0.05 if item.id == "i0" else None

    found: dict[str, str] = {}
    slow = OneWordModel(wait=lambda: asyncio.sleep(0.3))
    keep = lambda t: found.update({t.item_id: t.stop_reason})  # noqa: E731
    rollouts(Hasty(count=2), model=slow, group_size=1, keep=keep)
    assert found == {"i0": "time_limit", "i1": "finished"}


def test_a_setup_timeout_is_recorded_with_its_phase() -> None:
    @attrs.define
    class Slow(World):
        async def setup(self, item: Item, lease: Any) -> Mapping[str, Any]:
            await asyncio.sleep(3600)
            return {}

    found: list[Trajectory] = []
    rollouts(Slow(count=1), group_size=1, attempts=1, setup_s=0.05, keep=found.append)
    assert found[0].error == {
        "kind": "TimeoutError",
        "message": "setup took too long",
        "phase": "setup",
    }


def test_variables_of_the_host_reach_containers_but_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-secret")
    seen: list[hr.ContainerSpec] = []

    @attrs.define
    class Looks(World):
        def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
            seen.append(base)
            return base

    rollouts(Looks(count=1), tmp_path, env_names=["SOME_TOKEN"])
    assert seen[0].env["SOME_TOKEN"] == "very-secret"
    assert all(b"very-secret" not in path.read_bytes() for path in tmp_path.iterdir())
    monkeypatch.delenv("SOME_TOKEN")
    with pytest.raises(SpecError, match="SOME_TOKEN"):
        rollouts(Looks(count=1), env_names=["SOME_TOKEN"])


def test_the_agent_in_the_documentation_works() -> None:
    text = (Path(__file__).parents[4] / "docs" / "rollouts.md").read_text()
    code = next(block for block in text.split("```python\n") if "one_shot" in block).split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    found: list[Trajectory] = []
    world, runtime = World(count=1), cast(hr.Runtime, _Runtime())
    parts = attrs.evolve(made(world, OneWordModel(), FakeSlots()), agent=names["one_shot"])
    asyncio.run(run_rollouts(runtime, options(group_size=1), parts=parts, keep=found.append))
    assert (found[0].status, found[0].turns, len(found[0].messages)) == ("scored", 1, 3)
    assert found[0].segments


@pytest.mark.parametrize("display", [BarDisplay, PlainDisplay])
def test_progress_displays_failures_and_the_number_of_results(
    display: type[BarDisplay | PlainDisplay], capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(fails=lambda item, attempt: OSError("disk gone") if item == "i1" else None)
    shown = display()
    with shown.shown() if isinstance(shown, BarDisplay) else nullcontext():
        rollouts(world, on_event=shown.on_event, attempts=1)
    said = capsys.readouterr().err
    assert said.count("OSError in verify: disk gone") == 2
    assert display is BarDisplay or "6/6" in said


def test_a_verdict_that_json_cannot_hold_fails_its_trajectory_but_not_the_run(
    tmp_path: Path,
) -> None:
    @attrs.define
    class Odd(World):
        async def verify(
            self, item: Item, outcome: Outcome, lease: Any, fresh: Fresh, meta: Mapping[str, Any]
        ) -> Verdict:
            return Verdict(reward=1.0, facts={"loss": float("nan")} if item.id == "i0" else {})

    summary = rollouts(Odd(count=2), tmp_path, group_size=1)
    found = {t.item_id: t for t in read_trajectories(tmp_path)}
    assert (found["i0"].status, found["i0"].reward, summary.scored) == ("infrastructure", None, 1)
    assert "JSON" in (found["i0"].error or {})["message"]


def test_an_aborted_conversation_is_kept(tmp_path: Path) -> None:
    async def gone() -> None:
        raise OSError("the server is gone")

    rollouts(World(count=1), tmp_path, model=OneWordModel(wait=gone), group_size=1, attempts=1)
    (found,) = read_trajectories(tmp_path)
    assert found.messages == [{"role": "user", "content": "do i0"}]
    assert (found.error or {})["phase"] == "agent"


class Unscored:
    """An environment without a reward."""

    name = "unscored"

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def items(self) -> Iterable[Item]:
        return [Item(id="a"), Item(id="b")]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Any) -> Mapping[str, Any]:
        if self._fails and item.id == "b":
            raise OSError("disk full")
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": item.id}]


def unscored(
    run_dir: Path, *, fails: bool = False, **given: Any
) -> tuple[RolloutSummary, list[Trajectory]]:
    parts = attrs.evolve(made(World(), OneWordModel(), FakeSlots()), environment=Unscored(fails))
    asked, ended = options(environment="unscored", group_size=1, attempts=1, seed=None, **given), []

    async def keep(trajectory: Trajectory) -> None:
        await asyncio.sleep(0)
        ended.append(trajectory)

    summary = asyncio.run(
        run_rollouts(cast(hr.Runtime, _Runtime()), asked, run_dir=run_dir, parts=parts, keep=keep)
    )
    return summary, ended


def test_an_environment_without_a_reward_gives_unscored_trajectories(tmp_path: Path) -> None:
    summary, ended = unscored(tmp_path)
    found = read_trajectories(tmp_path)
    assert sorted(t.id for t in ended) == sorted(t.id for t in found) == ["a/0", "b/0"]
    assert {(t.status, t.reward, t.error, t.stop_reason, t.tool_calls) for t in found} == {
        ("unscored", None, None, "finished", 0)
    }
    assert not {"verify_s", "fresh_s"} & set(found[0].timing)
    assert (summary.scored, summary.infrastructure, summary.mean_reward) == (0, 0, None)
    assert summary.stop_reasons == {"finished": 2}
    assert unscored(tmp_path)[0].resumed == 2
    assert all(
        (group.complete, list(group.rewards)) == (False, [None]) for group in read_groups(tmp_path)
    )


def test_failures_in_a_run_without_rewards_are_retried_on_request(tmp_path: Path) -> None:
    summary, _ = unscored(tmp_path, fails=True)
    assert (summary.infrastructure, summary.errors) == (1, {"OSError": 1})
    assert unscored(tmp_path)[0].infrastructure == 1
    again, ended = unscored(tmp_path, retry_failed=True)
    assert ([t.id for t in ended], again.infrastructure) == (["b/0"], 0)


def test_a_run_without_rewards_cannot_be_exported_as_training_data(tmp_path: Path) -> None:
    unscored(tmp_path / "run")
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / RESULTS).touch()
    for run_dir in ("run", "batch"):
        with pytest.raises(RunError, match="has no rewards to train on"):
            export_run(tmp_path / run_dir, tmp_path / "out.jsonl", ExportOptions(to="jsonl"))
        with pytest.raises(RunError, match="has no rewards to train on"):
            list(export_groups(tmp_path / run_dir, ExportOptions(to="atropos")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch", "run"]
