"""A spec becomes the argument list of bubblewrap; unsupported fields are refused; the only image is
the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime import registry
from hyperruntime.driver import ContainerRecord, Images, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.process import (
    DEVNULL,
    kill_group,
    process_start_ticks,
    run_process,
    spawn,
    wait_until,
)
from hyperruntime.images.store import ImageStore
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_bubblewrap.args import KEEPER, MARK, OWN_ETC, ROOT, refuse, run_args
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


def test_all_namespaces_are_unshared_and_the_environment_is_cleared() -> None:
    args = args_of()
    wanted = {"--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop"}
    assert wanted <= set(args)
    assert "--share-net" not in args
    assert "CAP_SYS_ADMIN" not in args
    assert args[-3:] == ["/usr/bin/prlimit", "--nproc=512:512", "/bin/sh"]


@pytest.mark.parametrize(("ceiling", "count"), [(0, 512), (400, 400), (9000, 512)])
def test_the_stricter_of_two_limits_on_processes_applies(
    monkeypatch: pytest.MonkeyPatch, ceiling: int, count: int
) -> None:
    monkeypatch.setattr("hyperruntime.host.inherited.process_ceiling", lambda: ceiling)
    assert args_of()[-3:] == ["/usr/bin/prlimit", f"--nproc={count}:{count}", "/bin/sh"]


def test_subordinate_ids_and_the_filter_are_used_where_the_machine_has_them() -> None:
    alone, shared = args_of(), args_of("/f", users=True)
    assert alone[6:9] == ["/dev/null", OWN_ETC, "bwrap"]
    assert not {"unshare", "--cap-add", "--seccomp", "/usr/bin/setpriv"} & set(alone)
    assert shared[6:13] == [
        "/f",
        OWN_ETC,
        "unshare",
        "--user",
        "--map-root-user",
        "--map-auto",
        "bwrap",
    ]
    assert shared[shared.index("--seccomp") + 1] == "9"
    assert not {"--unshare-all", "--uid", "CAP_SYS_ADMIN"} & set(shared)
    assert "--unshare-net" in shared
    assert "--unshare-net" not in args_of(users=True, network="host")
    assert shared[-5:-2] == ["/usr/bin/setpriv", *ROOT]


def test_the_keeper_carries_the_name_and_the_labels_of_its_container() -> None:
    assert args_of()[:6] == [
        *("/bin/sh", "-c", KEEPER, MARK, "hyperruntime-1"),
        '{"image": "host", "labels": {"a": "b"}, "created": 5.5}',
    ]


def test_users_are_those_of_files_that_each_container_has_for_itself() -> None:
    args = args_of()
    assert binds(args, "--file") == [("7", "/etc/passwd"), ("8", "/etc/group")]
    show = run_process([*args[:8], "sh", "-c", "cat <&7; cat <&8"])
    assert show.stdout == b"".join(Path(OWN_ETC, name).read_bytes() for name in ("passwd", "group"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"network": "host"}, ["--share-net"]),
        ({"workdir": "/w"}, ["--chdir", "/w"]),
        ({"read_only_rootfs": True}, ["--remount-ro", "/"]),
        ({"mounts": (Mount(source="/m", target="/n"),)}, ["--ro-bind", "/m", "/n"]),
        ({"mounts": (Mount(source="/m", target="/n", read_only=False),)}, ["--bind", "/m", "/n"]),
        ({"limits": Limits(tmpfs_bytes=99)}, ["--size", "99", "--tmpfs", "/tmp"]),
        (
            {"limits": Limits(shm_bytes=99)},
            ["--perms", "1777", "--size", "99", "--tmpfs", "/dev/shm"],
        ),
        ({"limits": Limits(pids=99)}, ["/usr/bin/prlimit", "--nproc=99:99"]),
    ],
)
def test_each_field_adds_its_own_arguments(fields: dict[str, Any], words: list[str]) -> None:
    def holds(args: list[str]) -> bool:
        return any(args[n : n + len(words)] == words for n in range(len(args)))

    assert holds(args_of(**fields))
    assert not holds(args_of())


def test_a_mount_of_the_user_overrides_a_default_mount() -> None:
    args = args_of(mounts=(Mount(source="/m", target="/etc/hosts"),))
    targets = [target for _, target in binds(args, "--ro-bind") if target == "/etc/hosts"]
    assert len(targets) == 2
    assert binds(args, "--ro-bind")[-1] == ("/m", "/etc/hosts")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user": "nobody"}, "user"),
        ({"network": "bridge"}, "network"),
        ({"gpus": "all"}, "gpus"),
        ({"limits": Limits(memory_bytes=2**26)}, "limits.memory_bytes"),
        ({"limits": Limits(cpus=1)}, "limits.cpus"),
        ({"limits": Limits()}, "limits.pids"),
    ],
)
def test_unsupported_fields_are_refused_by_name(fields: dict[str, object], field: str) -> None:
    with pytest.raises(UnsupportedOptionError, match=f"bubblewrap cannot honour {field}"):
        refuse(ContainerSpec(**{"image": "host", "limits": Limits(pids=None), **fields}), "no")  # type: ignore[arg-type]


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


def test_image_operations_are_refused_by_name(tmp_path: Path) -> None:
    images: Images = BubblewrapDriver().images
    tar, containerfile = tmp_path / "a.tar", tmp_path / "Containerfile"
    containerfile.write_text("FROM localhost/x\n")
    uses: dict[str, Callable[[], object]] = {
        "remove": lambda: images.remove("host"),
        "load": lambda: images.load(tar),
        "load_rootfs": lambda: images.load_rootfs(tar, "localhost/x"),
        "save": lambda: images.save("host", tar),
        "pull": lambda: images.pull("reg.example/x", on_output=print),
        "build": lambda: ImageStore(images).build("localhost/x", containerfile=containerfile),
    }
    for verb, use in uses.items():
        with pytest.raises(
            UnsupportedOptionError, match=rf"cannot honour images\.{verb}: .*use another engine"
        ):
            use()


def test_containers_are_listed_and_removed_by_their_keepers() -> None:
    args = [
        "/bin/sh",
        "-c",
        KEEPER,
        MARK,
        "c",
        '{"image": "host", "labels": {"mine": "1"}, "created": 1700000000.5}',
        "/dev/null",
        OWN_ETC,
        "setpriv",
        "--pdeathsig",
        "KILL",
        "sleep",
        "951",
    ]
    keeper = spawn(args, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        driver = BubblewrapDriver()
        assert wait_until(lambda: "c" in [record.id for record in driver.containers()], 60)
        (record,) = (record for record in driver.containers() if record.id == "c")
        assert (record.image, record.labels, record.created) == (
            "host",
            {"mine": "1"},
            1700000000.5,
        )
        assert run_process(driver.cleanup_args("mine=2")).exit_code == 0
        assert keeper.poll() is None
        assert run_process(driver.cleanup_args("mine=1")).exit_code == 0
        assert keeper.wait(120) == -9
        assert "c" not in [record.id for record in driver.containers()]
    finally:
        kill_group(keeper)
        keeper.wait()


@pytest.mark.parametrize("how", ["another program", "another user"])
def test_a_process_that_is_no_keeper_of_this_user_is_not_listed_and_not_ended(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process of the machine chooses its own arguments."""
    mark = "another-program" if how == "another program" else MARK
    record = '{"image": "host", "labels": {"mine": "3"}}'
    args = ["/bin/sh", "-c", "sleep 954; :", mark, "other", record]
    other = spawn(args, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        assert wait_until(lambda: record in psutil.Process(other.pid).cmdline(), 120)
        if how == "another user":
            user = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: user)
        driver = BubblewrapDriver()
        assert "other" not in [found.id for found in driver.containers()]
        driver.remove_container("other")
        assert other.poll() is None
    finally:
        kill_group(other)
        other.wait()


def test_a_container_is_listed_once_while_its_keeper_has_a_child_with_the_same_arguments() -> None:
    record = '{"image": "host", "labels": {"mine": "2"}}'
    fork = ("eval", "(sleep 953; :) & wait")
    keeper = spawn(
        ["/bin/sh", "-c", KEEPER, MARK, "forking", record, "/dev/null", OWN_ETC, *fork],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        assert wait_until(lambda: len([r for _, r in keepers() if r.id == "forking"]) == 2, 60)
        assert [record.id for record in BubblewrapDriver().containers()].count("forking") == 1
        assert run_process(BubblewrapDriver().cleanup_args("mine=2")).exit_code == 0
        assert [r for _, r in keepers() if r.id == "forking"] == []
    finally:
        kill_group(keeper)
        keeper.wait()


def test_a_keeper_that_has_already_ended_does_not_stop_a_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, stays = (
        spawn(["sleep", "952"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL) for _ in range(2)
    )
    record = ContainerRecord(id="c", image="host", state="running", created=0.0, labels={})
    listed = [(psutil.Process(process.pid), record) for process in (gone, stays)]
    kill_group(gone)
    gone.wait()
    monkeypatch.setattr("hyperruntime_bubblewrap.driver.keepers", lambda: iter(listed))
    BubblewrapDriver().remove_container("c")
    assert stays.wait(120) == -9


def test_a_process_of_another_user_does_not_stop_a_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With subordinate ids a container's commands may be another user's, and end a moment after
    their parent.
    """
    keeper = spawn(["sh", "-c", "sleep 953 & wait"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
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
    monkeypatch.setattr(
        "hyperruntime_bubblewrap.driver.keepers",
        lambda: iter([(psutil.Process(keeper.pid), record)]),
    )
    monkeypatch.setattr(psutil.Process, "kill", kill_own)
    BubblewrapDriver().remove_container("c")
    assert len(refused) == 3
    assert keeper.wait(120) == -9
    assert process_start_ticks(child.pid) is None


def test_bubblewrap_is_the_last_automatic_choice() -> None:
    assert registry.auto_order()[-1] == "bubblewrap"
