"""The plug-in of pytest without an engine: what it imports, and the pools behind its fixtures, on
the fake driver.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from hyperruntime import registry
from hyperruntime.errors import SpecError
from hyperruntime.testing.driver import FakeDriver
from hyperruntime_pytest.pools import Pools, merged, table_of

IMPORTED = """
import sys, pytest
before = set(sys.modules)
import hyperruntime_pytest.plugin
print(sorted(set(sys.modules) - before))
"""


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = {"fake": registry.Plugin(name="fake", group="tests", load=lambda: FakeDriver)}
    monkeypatch.setattr(registry, "plugins", lambda _: fake)


def test_the_plug_in_imports_only_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['hyperruntime_pytest', 'hyperruntime_pytest.plugin']\n"


def test_lines_are_keys_of_a_profile_and_the_engine() -> None:
    lines = [
        "image=localhost/a:1",
        "runtime = podman",
        "env = A=1;B=x = y",
        "limits_memory_bytes = 64m",
    ]
    assert table_of(lines) == {
        "image": "localhost/a:1",
        "runtime": "podman",
        "env": {"A": "1", "B": "x = y"},
        "limits": {"memory_bytes": 2**26},
    }
    for line, why in [
        ("image", "KEY = VALUE"),
        ("imag = x", "did you mean 'image'"),
        ("limits_cpus = x", "a number"),
    ]:
        with pytest.raises(SpecError, match=why):
            table_of([line])


def test_later_keys_count_and_tables_are_merged() -> None:
    first, second = {"image": "a", "env": {"A": "1", "B": "1"}}, {"env": {"B": "2"}, "cpus": 1}
    assert merged(first, second) == {"image": "a", "env": {"A": "1", "B": "2"}, "cpus": 1}
    assert first == {"image": "a", "env": {"A": "1", "B": "1"}}


@pytest.mark.usefixtures("_fake")
def test_equal_keys_share_a_pool_and_each_lease_is_fresh() -> None:
    lines = ["runtime = fake", "limits_pids = none"]
    with Pools(lines) as pools:
        with (
            pools.lease() as one,
            pools.lease({"env": {"A": "1"}}) as other,
            pools.lease({}) as two,
        ):
            assert len({one.slot.container, two.slot.container, other.slot.container}) == 3
            assert one._source.pool is two._source.pool
            assert one._source.pool is not other._source.pool
            assert other.exec(["sh", "-c", "echo $A"]).stdout == b"1\n"
            one.write_file("left", b"1")
            assert one.listdir() == ["left"]
        with pools.lease() as after:
            assert after.listdir() == []
            state = after._source.pool
    assert state.status().state == "stopped"


@pytest.mark.usefixtures("_fake")
def test_of_the_pools_that_no_test_uses_only_the_last_few_keep_containers() -> None:
    with Pools(["runtime = fake", "limits_pids = none"]) as pools, pools.lease() as held:
        made = []
        for number in range(6):
            with pools.lease({"env": {"ID": str(number)}}) as lease:
                made.append(lease._source.pool)
        assert [pool.status().state for pool in made] == ["stopped"] * 2 + ["open"] * 4
        with pools.lease({"env": {"ID": "2"}}) as again, pools.lease({"env": {"ID": "0"}}) as anew:
            assert again._source.pool is made[2]
            assert anew.exec(["sh", "-c", "echo $ID"]).stdout == b"0\n"
        assert [pool.status().state for pool in made[2:]] == ["open", "stopped", "open", "open"]
        assert held.exec(["echo", "on"]).stdout == b"on\n"  # a container in use stays
    assert {pool.status().state for pool in made} == {"stopped"}
