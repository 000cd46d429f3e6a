"""The mark of a user in the files of its runs, and what a file without it may not choose."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.cli.rollout.train import TrainSettings
from hyperruntime.host.process import run_process
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import host_requests
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.runs.own_mark import (
    MARK,
    ReceivedRunError,
    check_requests,
    has_own_mark,
    with_own_mark,
)
from hyperruntime.spec import ContainerSpec, Mount, Service

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def be(user: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Become another user: one with another state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place / user))


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_a_mark_survives_the_file_and_no_change(value: dict[str, Any]) -> None:
    place = Path("/")
    read = json.loads(json.dumps(with_own_mark(value, place)))
    assert has_own_mark(read, place)
    assert not has_own_mark({**read, "one more": 1}, place)
    assert not has_own_mark({name: one for name, one in read.items() if name != MARK}, place)


@pytest.mark.parametrize("mark", [None, 5, "", "\ud800", "0" * 64, ["x"]])
def test_a_forged_mark_is_not_this_users(mark: object) -> None:
    assert not has_own_mark({"options": {}, MARK: mark}, Path("/"))


def test_another_user_has_another_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be("eve", tmp_path, monkeypatch)
    received = with_own_mark({"options": {"network": "host"}}, tmp_path)
    assert has_own_mark(received, tmp_path)
    be("me", tmp_path, monkeypatch)
    assert not has_own_mark(received, tmp_path)
    with pytest.raises(ReceivedRunError, match=r"asks for --network host; accept it with --trust$"):
        check_requests(tmp_path / "run.json", received, ["--network host"], trust=False)
    check_requests(tmp_path / "run.json", received, ["--network host"], trust=True)
    check_requests(tmp_path / "run.json", received, [], trust=False)
    key = tmp_path / "me" / "hyperruntime" / "run-mark.key"
    assert (key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_processes_that_begin_at_once_share_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be("me", tmp_path, monkeypatch)
    code = (
        "import json, pathlib; from hyperruntime.runs.own_mark import with_own_mark as m;"
        "print(json.dumps(m({}, pathlib.Path('/'))))"
    )
    with ThreadPoolExecutor(5) as pool:
        said = {
            result.stdout for result in pool.map(run_process, [[sys.executable, "-c", code]] * 5)
        }
    (one,) = said
    assert has_own_mark(json.loads(one), Path("/"))


def test_without_a_place_for_the_key_runs_are_unmarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    be("file", tmp_path, monkeypatch)
    assert with_own_mark({"a": 1, MARK: "old"}, tmp_path) == {"a": 1}
    assert not has_own_mark({"a": 1, MARK: "old"}, tmp_path)


# --- options ---


def leaves(options: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted name of each field of options that has no fields itself."""
    for field in attrs.fields(type(options)):
        value = getattr(options, field.name)
        if attrs.has(type(value)):
            yield from leaves(value, (*above, field.name))
        else:
            yield ".".join((*above, field.name))


# Each option is here, or is declared harmless in its field: a new option must be one of the two.
GENERATE = {
    "domains": ("table:/etc",),
    "executor": "other",
    "parent_selection": "./mine.py:Rule",
    "meta_patch_files": ("/etc/passwd",),
    "copy_root_dir": "/etc",
    "agent_archive_path": "/etc",
    "gateway": "/tmp/g.toml",
    "image": "registry.example/x",
    "network": "host",
    "allow": ("10.0.0.1",),
    "limits.pids": None,
    "limits.disk_bytes": None,
    "max_change_bytes": 1 << 40,
    "limits.tmpfs_bytes": 5,
    "limits.wall_s": 5.0,
    "limits_mode": "watchdog",
    "gpus": "all",
}
ROLLOUT = {
    "environment": "evil.py:Class",
    "environment_options": {"tasks": "/etc"},
    "model.base_url": "http://elsewhere",
    "model.tokenizer": "/etc",
    "model.key_env": "AWS_SECRET_ACCESS_KEY",
    "agent": "evil.py:run",
    "container.image": "dir:/etc",
    "container.network": "host",
    "container.host_names": {"a.test": "10.0.0.1"},
    "container.services": (Service(name="db", image="localhost/x"),),
    "allow": ("10.0.0.1",),
    "container.mounts": (Mount(source="/etc", target="/x"),),
    "container.gpus": "all",
    "container.limits.pids": None,
    "container.limits.tmpfs_bytes": 5,
    "container.limits.wall_s": 5.0,
    "container.limits.disk_bytes": 2**21,
    "container.workdir": "/x",
    "container.user": "root",
    "container.limits_mode": "watchdog",
    "container.read_only_rootfs": True,
    "container.labels": {"a": "b"},
    "container.pull": "missing",
    "env_names": ("AWS_SECRET_ACCESS_KEY",),
    "pool.acquire_timeout_s": 5.0,
}
TRAIN = {
    "environment": "evil.py:Class",
    "options": (("a", "b"),),
    "policy": "evil.py:P",
    "image": "/x.sif",
}
MODEL = ModelOptions(name="m", base_url="http://127.0.0.1:1")
CASES = [
    (GenerateOptions(domains="circle_packing"), GENERATE),
    (RolloutOptions(environment="toy", model=MODEL), ROLLOUT),
    (TrainSettings(), TRAIN),
]


def with_value(options: Any, name: str, value: object) -> Any:
    """Return options with a value at a dotted name; unlike ``attrs.evolve`` without the checks of
    the whole.
    """
    first, _, rest = name.partition(".")
    made = object.__new__(type(options))
    for field in attrs.fields(type(options)):
        object.__setattr__(made, field.name, getattr(options, field.name))
    object.__setattr__(
        made, first, with_value(getattr(options, first), rest, value) if rest else value
    )
    return made


@pytest.mark.parametrize(("options", "reaching"), CASES, ids=["generate", "rollout", "train"])
def test_each_option_is_harmless_or_is_asked_for(options: Any, reaching: dict[str, object]) -> None:
    usual = set(host_requests(options))
    assert set(reaching) <= set(leaves(options))
    for name in leaves(options):
        value = reaching.get(name, object())
        said = set(host_requests(with_value(options, name, value))) - usual
        path = tuple(name.split("."))
        if name in reaching:
            assert said, f"{name} is not asked for"
            assert not set(host_requests(with_value(options, name, value), [path])) - usual, (
                "the user gave it"
            )
        else:
            assert not said, f"{name} is neither harmless nor in the table of this test"


def test_requests_are_written_as_on_the_command_line_on_one_line() -> None:
    spec = ContainerSpec(image="base", network="host", mounts=(Mount(source="/a", target="/b"),))
    options = RolloutOptions(
        environment="toy", agent="x\x1b[2Jy\n.py:f", container=spec, env_names=("AWS_KEY",)
    )
    assert host_requests(options) == (
        "--agent 'x\\x1b[2Jy\\n.py:f'",
        '--mount [{"source": "/a", "target": "/b", "read_only": true}]',
        "--network host",
        "env_names AWS_KEY",
    )
    assert (
        host_requests(
            GenerateOptions(domains="circle_packing", image="localhost/hyperruntime/base:latest")
        )
        == ()
    )
    assert host_requests(RolloutOptions(environment="toy")) == ()
