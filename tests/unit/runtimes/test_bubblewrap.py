"""What bubblewrap shows of the host, and how its containers are found; the conformance suite checks
the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime import registry
from hyperruntime.driver import ContainerRecord, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.process import (
    DEVNULL,
    HostProcess,
    kill_group,
    process_start_ticks,
    run_process,
    spawn,
    wait_until,
)
from hyperruntime.images.store import ImageStore
from hyperruntime.spec import ContainerSpec, Mount
from hyperruntime_bubblewrap.args import KEEPER, MARK, OWN_ETC, run_args
from hyperruntime_bubblewrap.driver import REFUSED, BubblewrapDriver, keepers


def args_of(filter_path: str = "", *, users: bool = False, **fields: Any) -> list[str]:
    launch = Launch(
        spec=ContainerSpec(**{"image": "host", **fields}),
        name="hyperruntime-1",
        labels={"a": "b"},
        exchange=Mount(source="/x", target="/run/hyperruntime"),
        private_dir="/private",
    )
    return run_args(launch, filter_path, users=users, created=5.5)


def binds(args: list[str], flag: str) -> list[tuple[str, str]]:
    return [(args[n + 1], args[n + 2]) for n, word in enumerate(args) if word == flag]


def test_only_programs_and_named_files_of_the_host_are_visible() -> None:
    args = args_of()
    assert binds(args, "--ro-bind") == [
        ("/usr", "/usr"),
        (f"{OWN_ETC}/hosts", "/etc/hosts"),
        ("/x", "/run/hyperruntime"),
    ]
    shown = {source for source, _ in binds(args, "--ro-bind-try")}
    assert "/etc/ld.so.cache" in shown
    assert not shown & {
        "/etc",
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc/shadow",
        "/etc/ssh",
        "/etc/resolv.conf",
    }
    assert binds(args, "--bind") == []


def test_machine_specific_directories_below_usr_are_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    names = ("there", "link", "missing")
    monkeypatch.setattr(
        "hyperruntime_bubblewrap.args.HIDDEN", tuple(str(tmp_path / name) for name in names)
    )
    text = " ".join(args_of())
    hidden = f"--tmpfs {tmp_path}/there --remount-ro {tmp_path}/there"
    assert text.index("--ro-bind /usr /usr") < text.index(hidden)
    assert text.count(str(tmp_path)) == 2


def test_the_host_is_the_base_image_if_it_has_the_required_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = ImageStore(BubblewrapDriver().images)
    for name in ("git", "patch", "python3", "tar"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert store.ensure("base") == "localhost/hyperruntime/base:latest"
    assert store.ensure("host") == "host"
    assert [image.references for image in store.list()] == [
        ("host", "localhost/hyperruntime/base:latest")
    ]
    (tmp_path / "patch").unlink()
    refusing = ImageStore(BubblewrapDriver().images, lambda: REFUSED)
    with pytest.raises(UnsupportedOptionError, match="`base` if it has git, patch, python3, tar"):
        refusing.ensure("base")
    assert not store.exists("localhost/hyperruntime/base:latest")
    assert not store.exists("localhost/other:latest")
    with pytest.raises(UnsupportedOptionError, match=r"images\.save: .*use another engine"):
        BubblewrapDriver().images.save("host", tmp_path / "a.tar")


@pytest.fixture
def start() -> Iterator[Callable[..., HostProcess]]:
    """Return a function that starts a process; afterwards it is killed with its children."""
    started: list[HostProcess] = []

    def call(*args: str) -> HostProcess:
        started.append(spawn(args, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL))
        return started[-1]

    yield call
    for process in started:
        kill_group(process)
        process.wait()


def keeper_args(name: str, *program: str, mark: str = MARK) -> tuple[str, ...]:
    record = json.dumps({"image": "host", "labels": {"mine": name}, "created": 1700000000.5})
    return ("/bin/sh", "-c", KEEPER, mark, name, record, "/dev/null", OWN_ETC, *program)


def test_a_container_is_listed_once_and_ended_by_its_label(
    start: Callable[..., HostProcess],
) -> None:
    """Its keeper has a child with the same arguments for a moment."""
    keeper = start(*keeper_args("forking", "eval", "(sleep 953; :) & wait"))
    assert wait_until(lambda: len([r for _, r in keepers() if r.id == "forking"]) == 2, 60)
    driver = BubblewrapDriver()
    (record,) = (record for record in driver.containers() if record.id == "forking")
    assert (record.image, record.labels, record.created) == (
        "host",
        {"mine": "forking"},
        1700000000.5,
    )
    assert run_process(driver.cleanup_args("mine=another")).exit_code == 0
    assert keeper.poll() is None
    assert run_process(driver.cleanup_args("mine=forking")).exit_code == 0
    assert keeper.wait(120) == -9
    assert [r for _, r in keepers() if r.id == "forking"] == []


@pytest.mark.parametrize("how", ["another program", "another user"])
def test_a_process_that_is_no_keeper_of_this_user_is_not_listed_and_not_ended(
    how: str, start: Callable[..., HostProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process of the machine chooses its own arguments."""
    mark = "another-program" if how == "another program" else MARK
    other = start(*keeper_args("other", "sleep", "954", mark=mark))
    assert wait_until(lambda: "other" in psutil.Process(other.pid).cmdline(), 120)
    if how == "another user":
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)
    driver = BubblewrapDriver()
    assert "other" not in [found.id for found in driver.containers()]
    driver.remove_container("other")
    assert other.poll() is None


def test_ended_keepers_and_processes_of_other_users_do_not_stop_a_removal(
    start: Callable[..., HostProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With subordinate ids a container's commands may be another user's, and end a moment after
    their parent.
    """
    gone, keeper = start("sleep", "952"), start("sh", "-c", "sleep 953 & wait")
    assert wait_until(lambda: bool(psutil.Process(keeper.pid).children()), 120)
    (child,) = psutil.Process(keeper.pid).children()
    kill = psutil.Process.kill
    refused: list[psutil.Process] = []

    def kill_own(process: psutil.Process) -> None:
        if process == child and len(refused) < 3:
            refused.append(process)
            raise psutil.AccessDenied(process.pid)
        kill(process)

    record = ContainerRecord(id="c", image="host", state="running", created=0.0, labels={})
    listed = [(psutil.Process(process.pid), record) for process in (gone, keeper)]
    kill_group(gone)
    gone.wait()
    monkeypatch.setattr("hyperruntime_bubblewrap.driver.keepers", lambda: iter(listed))
    monkeypatch.setattr(psutil.Process, "kill", kill_own)
    BubblewrapDriver().remove_container("c")
    assert len(refused) == 3
    assert keeper.wait(120) == -9
    assert process_start_ticks(child.pid) is None


def test_bubblewrap_is_the_last_automatic_choice() -> None:
    assert registry.auto_order()[-1] == "bubblewrap"
