"""Runs of rollouts with a fake model, environment and slots: resuming, failures, cancellation,
records.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.cli.progress import LiveDisplay, plain_progress
from hyperruntime.cli.rollout.run import Tracker
from hyperruntime.errors import (
    ArchiveError,
    LeaseLostError,
    ModelError,
    RunError,
    RunLockedError,
    SandboxLostError,
    SpecError,
)
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.rollout.agent.agent import AgentLimits, Tools
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.rollout.run.runner import run_rollouts
from hyperruntime.rollout.run.store import RunStore, resumable_options
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import (
    GROUPS,
    RESULTS,
    TRAJECTORIES,
    read_groups,
    read_trajectories,
)
from hyperruntime.rollout.training_data.export import ExportOptions, export_groups, export_run
from hyperruntime.runs.lock import RunLock
from tests.doubles.episodes import (
    RUNTIME,
    FakeModel,
    FakeSlots,
    Unscored,
    World,
    cancel,
    options,
    parts,
    rollouts,
)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pause before a retry almost zero."""
    monkeypatch.setattr("hyperruntime.rollout.run.runner._RETRY_S", 0.001)


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
    asked, said = first.messages
    assert asked == {"role": "user", "content": f"do {first.item_id}"}
    assert "word ?" in said["content"], "the file is valid UTF-8 for any text of a model"
    assert {"acquire_s", "setup_s", "model_s", "verify_s", "release_s", "total_s"} <= set(
        first.timing
    )
    assert [list(s.mask) for s in first.segments] == [[0, 0, 0, 1, 1]]
    groups = read_groups(tmp_path / "run")
    assert sorted(g.item_id for g in groups) == ["i0", "i1", "i2"]
    assert sorted(groups[0].rewards) == [0.0, 1.0]  # type: ignore[type-var]
    assert sum(value for value in groups[0].advantages if value is not None) == pytest.approx(0)
    assert (summary.scored, summary.wanted, summary.mean_reward, summary.groups) == (6, 6, 0.5, 3)


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


def test_each_failed_attempt_counts_as_a_failure_in_a_row(tmp_path: Path) -> None:
    world = World(count=50, fails=lambda item, attempt: OSError("disk full"))
    with pytest.raises(RunError, match=r"failed 4 times in a row \(OSError: disk full\)"):
        rollouts(world, tmp_path, group_size=1, parallel=1, attempts=3, give_up_after=4)
    assert world.attempts == {"i0": 3, "i1": 1}
    assert [trajectory.attempts for trajectory in read_trajectories(tmp_path)] == [3, 1]


def test_an_attempt_without_a_failure_begins_the_count_anew(tmp_path: Path) -> None:
    world = World(count=6, fails=lambda item, attempt: OSError("gone") if attempt < 3 else None)
    assert rollouts(world, tmp_path, group_size=1, parallel=1, give_up_after=3).scored == 6


def test_the_default_count_is_at_least_twice_the_parallel_trajectories() -> None:
    assert [options(parallel=number).failures_allowed for number in (1, 10, 64)] == [20, 20, 128]
    assert options(parallel=64, give_up_after=5).failures_allowed == 5


def test_a_model_server_that_is_down_is_reported_before_a_container_or_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._REACH_S", 0)
    slots, run_dir = FakeSlots(), tmp_path / "run"
    down = options(model=ModelOptions(name="m", base_url="http://127.0.0.1:9/v1"))
    without = attrs.evolve(parts(slots=slots), model=None)
    with pytest.raises(
        ModelError, match=r"no model server answers at http://127.0.0.1:9/v1 \(.*\); start it"
    ):
        asyncio.run(run_rollouts(RUNTIME, down, run_dir=run_dir, parts=without))
    assert (slots.asked, run_dir.exists()) == ([], False)


def test_what_cannot_be_made_creates_no_run_directory(tmp_path: Path) -> None:
    """So the corrected command can use the same directory."""
    run_dir = tmp_path / "run"
    model = ModelOptions(name="m", base_url="http://127.0.0.1:9/v1", key_env="NO_SUCH_KEY")
    no_environment = attrs.evolve(parts(), environment=None)
    for chosen, used in (
        (options(environment="there-is-none"), no_environment),
        (options(model=model), attrs.evolve(parts(), model=None)),
    ):
        with pytest.raises((SpecError, ModelError), match=r"there-is-none|NO_SUCH_KEY"):
            asyncio.run(run_rollouts(RUNTIME, chosen, run_dir=run_dir, parts=used))
    assert not run_dir.exists()


def test_resuming_a_finished_run_does_nothing_and_needs_no_model_server(tmp_path: Path) -> None:
    given = options(model=ModelOptions(name="m", base_url="http://127.0.0.1:9/v1"))
    asyncio.run(run_rollouts(RUNTIME, given, run_dir=tmp_path, parts=parts()))
    before = (tmp_path / TRAJECTORIES).read_bytes()
    without = attrs.evolve(parts(), model=None)
    summary = asyncio.run(run_rollouts(RUNTIME, given, run_dir=tmp_path, parts=without))
    assert (summary.resumed, summary.scored) == (6, 6)
    assert (tmp_path / TRAJECTORIES).read_bytes() == before


def test_a_trajectory_that_fails_during_cancellation_is_not_recorded_and_not_retried(
    tmp_path: Path,
) -> None:
    async def wait() -> None:
        try:
            await asyncio.sleep(3600 if len(model.asked) == 1 else 0)
        finally:
            if len(model.asked) == 1:
                raise OSError("the connection is gone")

    model = FakeModel(wait=wait)
    run = run_rollouts(RUNTIME, options(parallel=1), run_dir=tmp_path, parts=parts(model=model))
    cancel(run, lambda: bool(model.asked))
    assert len(model.asked) == 1
    assert read_trajectories(tmp_path) == []


def test_r11_a_cancelled_run_releases_every_slot_and_records_no_partial_result(
    tmp_path: Path,
) -> None:
    slots, model = FakeSlots(), FakeModel(wait=lambda: asyncio.sleep(3600))
    chosen = parts(model=model, slots=slots)
    run = run_rollouts(RUNTIME, options(), run_dir=tmp_path, parts=chosen)
    cancel(run, lambda: len(model.asked) == 3 == slots.held)
    assert len(slots.asked) == 3, "no more than `parallel` at once"
    assert slots.held == 0
    assert read_trajectories(tmp_path) == []
    assert rollouts(World(), tmp_path).scored == 6


def test_a_second_run_in_the_directory_of_a_running_one_is_rejected(tmp_path: Path) -> None:
    async def again() -> None:
        with pytest.raises(RunLockedError):
            await run_rollouts(RUNTIME, options(), run_dir=tmp_path, parts=parts())

    assert rollouts(World(), tmp_path, model=FakeModel(wait=again)).scored == 6


def test_a_run_ends_if_another_process_takes_over_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = RunLock.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "renew_s", 0.02)
    owner = tmp_path / "owner.json"

    async def taken_over() -> None:
        owner.write_text(json.dumps(json.loads(owner.read_bytes()) | {"token": "another"}))
        await asyncio.Event().wait()

    with pytest.raises(LeaseLostError, match="taken over"):
        rollouts(World(), tmp_path, model=FakeModel(wait=taken_over))
    assert json.loads(owner.read_bytes())["token"] == "another"


def test_a_run_with_other_options_in_the_same_directory_is_rejected(tmp_path: Path) -> None:
    rollouts(World(), tmp_path)
    with pytest.raises(RunError, match=r"--group-size cannot change .* has 2; leave it out"):
        rollouts(World(), tmp_path, group_size=4)
    os.unlink(tmp_path / "run.json")
    with pytest.raises(RunError, match=r"no run\.json"):
        rollouts(World(), tmp_path)


def test_a_run_is_resumed_with_the_same_options_in_other_types(tmp_path: Path) -> None:
    """JSON has no tuples and no keys that are numbers."""
    model = ModelOptions(name="m", base_url="http://h/v1", extra={"stop": ("a", "b")})
    store = RunStore(tmp_path / "run")
    (tmp_path / "run").mkdir()
    store.keep_options(store.begin(options(model=model)))
    assert RunStore(tmp_path / "run").begin(options(model=model)).model is not None


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
    with pytest.raises(RunError, match=r"--agent cannot change .* has .*/here/mine\.py:work"):
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
    model = FakeModel()
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
    assert (slots.asked, (tmp_path / "run").exists()) == ([], False)
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
    chosen = parts(Users(count=1), slots=slots, toolset=toolset)
    asyncio.run(run_rollouts(RUNTIME, options(group_size=1), parts=chosen))
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
    for name, wrong in {"group_size": 0, "temperature": float("nan")}.items():
        with pytest.raises(SpecError, match=name):
            options(**{name: wrong})


def test_an_item_may_have_a_shorter_time_limit_than_the_run() -> None:
    @attrs.define
    class Hasty(World):
        def time_limit_s(self, item: Item) -> float | None:
            return 0.05 if item.id == "i0" else None

    found: dict[str, str] = {}
    slow = FakeModel(wait=lambda: asyncio.sleep(0.3))
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
    rollouts(World(count=1), agent=names["one_shot"], group_size=1, keep=found.append)
    assert (found[0].status, found[0].turns, len(found[0].messages)) == ("scored", 1, 3)
    assert found[0].segments


@pytest.mark.parametrize("is_live", [True, False])
def test_progress_displays_failures_and_the_number_of_results(
    is_live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(fails=lambda item, attempt: OSError("disk gone") if item == "i1" else None)
    tracker = Tracker()
    shown = LiveDisplay(tracker) if is_live else None
    with shown.shown() if shown is not None else nullcontext():
        on_event = plain_progress(tracker) if shown is None else shown.on_event
        rollouts(world, on_event=on_event, attempts=1)
    said = capsys.readouterr().err
    assert said.count("OSError in verify: disk gone") == 2
    assert is_live or "6/6" in said
    assert (tracker.done, tracker.total, tracker.summary()) == (
        6,
        6,
        "mean reward 1.000, 0 running",
    )


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

    rollouts(World(count=1), tmp_path, model=FakeModel(wait=gone), group_size=1, attempts=1)
    (found,) = read_trajectories(tmp_path)
    assert found.messages == [{"role": "user", "content": "do i0"}]
    assert (found.error or {})["phase"] == "agent"


@pytest.mark.parametrize("reason", ["abort", "aborted", "error", "a_new_word"])
def test_a_turn_that_broke_off_is_an_infrastructure_failure_without_a_reward(reason: str) -> None:
    found: list[Trajectory] = []
    model = FakeModel(finish_reason=reason)
    rollouts(World(count=1), model=model, keep=found.append, group_size=1, attempts=1)
    (one,) = found
    assert (one.status, one.reward, one.stop_reason) == ("infrastructure", None, "")
    assert one.error is not None
    assert (one.error["kind"], one.error["phase"]) == ("ModelError", "agent")
    assert reason in one.error["message"]


@pytest.mark.parametrize(
    ("reason", "ends"), [("content_filter", "content_filter"), ("length", "token_limit")]
)
def test_a_turn_that_a_filter_or_a_limit_ended_is_scored(reason: str, ends: str) -> None:
    found: list[Trajectory] = []
    rollouts(World(count=1), model=FakeModel(finish_reason=reason), keep=found.append)
    assert {(t.status, t.reward, t.stop_reason) for t in found} == {("scored", 1.0, ends)}


def test_an_environment_without_a_reward_gives_unscored_trajectories(tmp_path: Path) -> None:
    ended: list[str] = []

    async def keep(trajectory: Trajectory) -> None:
        await asyncio.sleep(0)
        ended.append(trajectory.id)

    model = FakeModel()
    given: dict[str, Any] = {"group_size": 1, "seed": None, "model": model, "keep": keep}
    summary = rollouts(Unscored(count=2), tmp_path, **given)
    found = read_trajectories(tmp_path)
    assert sorted(ended) == sorted(t.id for t in found) == ["i0/0", "i1/0"]
    assert {(t.status, t.reward, t.error, t.stop_reason, t.tool_calls) for t in found} == {
        ("unscored", None, None, "finished", 0)
    }
    assert not {"verify_s", "fresh_s"} & set(found[0].timing)
    assert (summary.scored, summary.infrastructure, summary.mean_reward) == (0, 0, None)
    assert (summary.stop_reasons, set(model.seeds)) == ({"finished": 2}, {None})
    assert rollouts(Unscored(count=2), tmp_path, **given).resumed == 2
    assert all(
        (group.complete, list(group.rewards)) == (False, [None]) for group in read_groups(tmp_path)
    )


def test_a_run_without_rewards_cannot_be_exported_as_training_data(tmp_path: Path) -> None:
    rollouts(Unscored(), tmp_path / "run")
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / RESULTS).touch()
    for run_dir in ("run", "batch"):
        with pytest.raises(RunError, match="has no rewards to train on"):
            export_run(tmp_path / run_dir, tmp_path / "out.jsonl", ExportOptions(to="jsonl"))
        with pytest.raises(RunError, match="has no rewards to train on"):
            list(export_groups(tmp_path / run_dir, ExportOptions(to="atropos")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch", "run"]
