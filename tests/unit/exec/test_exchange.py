"""Exchange directories share what is dear to make, and nothing that a container left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from hyperruntime.exec.exchange import Exchanges
from hyperruntime.exec.lane import Lane, LanePool
from hyperruntime.run_as import RunAs

MARK = cast(Any, None)


@pytest.fixture
def exchanges(tmp_path: Path) -> Exchanges:
    return Exchanges(str(tmp_path))


def pool_of(exchanges: Exchanges, name: str) -> LanePool:
    _, exchange = exchanges.make(name, b"")
    return LanePool(exchange, lambda lane: None, lambda: MARK, exchanges)


def lane_directory(lane: Lane) -> Path:
    return Path(lane._path(""))


@pytest.mark.parametrize("links", [True, False])
def test_each_container_has_all_programs_and_its_own_environment(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def refuse(*names: str) -> None:
            raise OSError("no links on this file system")

        monkeypatch.setattr(os, "link", refuse)
    made = [Path(exchanges.make(name, f"export A={name}\n".encode())[1]) for name in ("a", "b")]
    for name, place in zip("ab", made, strict=True):
        programs = {path.name: path for path in place.iterdir()}
        assert set(programs) == {"supervisor.sh", "lane.sh", "shell.sh", "state.sh"}
        assert programs["supervisor.sh"].read_bytes().startswith(f"export A={name}\n".encode())
        assert {path.stat().st_mode & 0o777 for path in programs.values()} == {0o644}
        assert place.stat().st_mode & 0o777 == 0o711
    assert (made[0] / "lane.sh").samefile(made[1] / "lane.sh") == links


def test_a_lane_gets_the_directory_of_one_that_ended_without_its_command(
    exchanges: Exchanges,
) -> None:
    first = pool_of(exchanges, "a")
    lane = first.lane_for(None, checks=False)
    lane._write_script(b"export KEY=secret\n")
    before = lane_directory(lane)
    inode = before.stat().st_ino
    first.keep(lane)
    first.close(ended=True)
    assert not before.exists()

    again = pool_of(exchanges, "b").lane_for(None, checks=False)
    after = lane_directory(again)
    assert after.stat().st_ino == inode
    assert after.name != before.name
    assert (after / "c").read_bytes() == b""
    assert again.is_usable()
    again.close()


@pytest.mark.parametrize(
    ("user", "ended"), [(None, False), (RunAs(uid=1000, gid=1000), True)], ids=["alive", "user"]
)
def test_a_lane_that_somebody_could_have_open_is_not_used_again(
    exchanges: Exchanges, tmp_path: Path, user: RunAs | None, ended: bool
) -> None:
    pool = pool_of(exchanges, "a")
    lane = pool.lane_for(user, checks=False)
    inode = lane_directory(lane).stat().st_ino
    pool.keep(lane)
    pool.close(ended=ended)
    assert inode not in {path.stat().st_ino for path in tmp_path.rglob("*")}
