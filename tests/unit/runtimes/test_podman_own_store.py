"""Which store containers of Podman run in, and what a run says if it is a slow one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.host.process import run_process
from hyperruntime_podman import driver, edge, probe, program
from hyperruntime_podman.args import Settings, command_args, in_user_store
from hyperruntime_podman.driver import PodmanDriver
from hyperruntime_podman.own_store import Store, chosen_slow, reset_step, slow_step, store_facts
from hyperruntime_podman.probe import choose_store

STORE = Store(
    driver="vfs", root="/home/a/.local/share/containers/storage", run_root="/run/user/7/containers"
)
SETTINGS = Settings(oci_runtime="runc", rootless=True)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate an ordinary user without any configuration; return the path of the user's file."""
    monkeypatch.setattr(program, "_SYSTEM", (str(tmp_path / "system.conf"),))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("STORAGE_DRIVER", "CONTAINERS_STORAGE_CONF"):
        monkeypatch.delenv(name, raising=False)
    (path := tmp_path / "config" / "containers" / "storage.conf").parent.mkdir(parents=True)
    return path


def test_an_explicit_choice_of_vfs_is_found(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen_slow() == ""
    for text in (
        "",
        "[storage",
        'storage = "vfs"',
        '[storage]\ndriver = "overlay"',
        '[storage]\ngraphroot = "/vfs"',
    ):
        config.write_text(text)
        assert chosen_slow() == "", text
    config.write_text('[storage]\n  driver = "vfs" # slow\n')
    assert chosen_slow() == str(config)
    assert (
        slow_step(STORE, "chosen")
        == f"`sed -i '/^ *driver *=/s/vfs/overlay/' {shlex.quote(str(config))}`"
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "other.conf"))
    assert chosen_slow() == "", "Podman does not read the user's file then"
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    assert chosen_slow() == "STORAGE_DRIVER"
    assert slow_step(STORE, "chosen") == "`unset STORAGE_DRIVER`"
    monkeypatch.setenv("STORAGE_DRIVER", "overlay")
    assert chosen_slow() == ""


def test_a_choice_of_the_administrator_is_found_and_the_command_takes_it_back(
    config: Path, tmp_path: Path
) -> None:
    (tmp_path / "system.conf").write_text('[storage]\ndriver = "vfs"\n')
    assert chosen_slow() == str(tmp_path / "system.conf")
    step = slow_step(STORE, "chosen")
    assert "reset" not in step, "the images stay"
    config.parent.rmdir()
    assert run_process(["/bin/sh", "-c", step.strip("`")]).exit_code == 0
    assert chosen_slow() == ""
    config.write_text('[storage]\ndriver = "overlay"\n')
    assert chosen_slow() == "", "the user's file comes first"


def test_the_remembered_probe_depends_on_the_configuration_of_the_store(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [store_facts()]
    config.write_text('[storage]\ndriver = "vfs"\n')
    seen.append(store_facts())
    config.write_text('[storage]\ndriver = "overlay"\n')
    seen.append(store_facts())
    for name in ("STORAGE_DRIVER", "CONTAINERS_STORAGE_CONF", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, "/x")
        seen.append(store_facts())
    assert len(set(seen)) == len(seen)


def test_a_store_that_is_quick_is_used_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "user_store", lambda: pytest.fail("nothing is to be asked"))
    assert choose_store("overlay", SETTINGS, "/none", ()).settings is SETTINGS


@pytest.mark.parametrize(
    ("uid", "variable", "found", "why", "step"),
    [
        (7, "vfs", "an error", "STORAGE_DRIVER chooses vfs", "`unset STORAGE_DRIVER`"),
        (0, "", "", "root has one store", "graphroot"),
        (7, "", "an overlay store does not work: x", "an overlay store does not work: x", "`"),
        (7, "", "", "", ""),
    ],
)
def test_the_own_store_is_used_if_it_works_and_nobody_chose_another(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    variable: str,
    found: str,
    why: str,
    step: str,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(probe, "user_store", lambda: STORE)
    monkeypatch.setattr(probe, "_try_own", lambda *_: found)
    if variable:
        monkeypatch.setenv("STORAGE_DRIVER", variable)
    place = choose_store("vfs", SETTINGS, "/none", ())
    assert place.slow == why
    assert step in place.step
    assert bool(place.step) == bool(why)
    assert place.settings.root == ("" if why else f"{STORE.root}/hyperruntime")


def test_a_failure_of_podman_in_the_trial_is_a_reason_and_not_an_error(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "user_store", lambda: STORE)
    place = choose_store("vfs", SETTINGS, str(tmp_path / "none"), ())
    assert place.slow.startswith("an overlay store does not work: ")
    assert place.settings is SETTINGS


def test_only_commands_about_containers_name_the_own_store() -> None:
    own = Settings(oci_runtime="runc", root="/a b/s", run_root="/r")
    named = ["--root", "/a b/s", "--runroot", "/r", "--storage-driver", "overlay"]
    assert command_args(own, "run") == [*named, "run", "--runtime", "runc"]
    assert command_args(in_user_store(own), "run") == ["run", "--runtime", "runc"]


def test_the_next_step_keeps_the_lines_of_a_file_of_the_user(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = reset_step(STORE)
    assert new.startswith("`podman system reset --force && mkdir -p ")
    config.write_text('[storage]\ngraphroot = "/kept"\n')
    assert ">" not in reset_step(STORE)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert f'graphroot = "{STORE.root}"' in reset_step(STORE)


def test_the_guard_looks_into_the_own_store_of_an_ordinary_user(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the store itself: it starts before the first probe."""
    (tmp_path / "a b" / "hyperruntime" / "overlay-containers").mkdir(parents=True)
    podman = tmp_path / "podman"
    podman.write_text(
        f'#!/bin/sh\ncase "$*" in *GraphRoot*) echo "{tmp_path}/a b";; *RunRoot*) echo /r;;\n'
        f'*) echo "$*" >>{tmp_path}/asked;; esac\n'
    )
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(edge, "run_files", dict)
    args = PodmanDriver().cleanup_args("a=b")
    assert os.spawnvp(os.P_WAIT, args[0], args) == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    own = f"--root {tmp_path}/a b/hyperruntime --runroot /r/hyperruntime --storage-driver overlay "
    ps = "ps --all --quiet --filter label=a=b"
    images = "images --format {{.Repository}}:{{.Tag}} --filter label=a=b"
    assert asked == [ps, images, f"{own}{ps}", f"{own}{images}"]


def test_a_snapshot_in_a_store_that_containers_do_not_use_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {("sha256:1", *STORE.own_args), ("sha256:2",)}
    monkeypatch.setattr(driver, "inspect_image", lambda *one: {"Id": "1"} if one in there else None)
    monkeypatch.setattr(driver, "own_store_args", lambda: STORE.own_args)
    own = Settings(rootless=True, root=STORE.own_args[1], run_root=STORE.own_args[3])
    find = PodmanDriver()._settings_of
    with pytest.raises(SpecError, match=f"it lies in the store {own.root}, which containers do"):
        find("sha256:1", SETTINGS)
    assert find("sha256:2", SETTINGS) == SETTINGS
    assert find("sha256:1", own) == own
    assert find("sha256:2", own) == in_user_store(own)
