"""If the store of rootless Podman has the driver vfs, containers run in an overlay store of this
library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import ProcessResult
from tests.contract.podman_accounts import IMAGE, PodmanAccount

pytestmark = pytest.mark.engine

OPEN = """
    import json, sys
    import hyperruntime as hr
    from hyperruntime.errors import ImageNotFoundError
    with hr.open_runtime("podman") as runtime:
        def run(image, *args):
            with runtime.container(hr.ContainerSpec(image=image)) as container:
                return container.exec(args).stdout.decode()
"""


def opened(script: str) -> str:
    """Return a script with the start ``OPEN``."""
    return textwrap.dedent(OPEN) + textwrap.indent(textwrap.dedent(script), "    ")


class Account(PodmanAccount):
    """A new account on Debian 12: no file chooses a storage driver, and the store was begun with
    vfs.
    """

    def __init__(self) -> None:
        super().__init__()
        root = self.directory / "data" / "containers" / "storage"
        self.own = root / "hyperruntime"
        found = self.podman("info", "--format", "{{.Store.GraphRoot}}", STORAGE_DRIVER="vfs")
        assert found == str(root)
        self.make_image("first")

    def in_own(self, *args: str) -> str:
        """Run Podman with the store of this library."""
        run = self.run / "containers" / "hyperruntime"
        return self.podman(
            "--root", str(self.own), "--runroot", str(run), "--storage-driver", "overlay", *args
        )

    def python(self, script: str, *args: str, **more: str) -> ProcessResult:
        """Run a script in another process, with the start ``OPEN``."""
        return super().python(opened(script), *args, **more)

    def printed(self, script: str, *args: str, **more: str) -> list[str]:
        """Return the lines that a script prints, which must succeed."""
        done = self.python(script, *args, **more)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()

    def leave(self, *options: str) -> None:
        """Start containers of an owner that is dead, in a store each."""
        identity = OwnerIdentity.current()
        labels = {**identity.to_labels(), f"{LABEL}.pid": str(2**22 + 1), LABEL: "left"}
        words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        args = ("run", "--detach", "--rm", "--network", "none", *options, *words)
        runtime = ("--runtime", "runc") if shutil.which("runc") else ()
        self.podman(*runtime, *args, "--name", "hyperruntime-in-vfs", IMAGE, "sleep", "1000")
        self.in_own(*runtime, *args, "--name", "hyperruntime-in-own", IMAGE, "sleep", "1000")

    def names(self) -> list[str]:
        every = (
            self.podman("ps", "-a", "--format", "{{.Names}}"),
            self.in_own("ps", "-a", "--format", "{{.Names}}"),
        )
        return sorted(" ".join(every).split())


@pytest.fixture
def account() -> Iterator[Account]:
    """The account; afterwards, nothing of it is left."""
    assert os.geteuid() != 0, "root has one store; scripts/test runs this as the ordinary user"
    made = Account()
    yield made
    made.migrate()
    made.kill_all()
    made.remove()
    assert not made.directory.exists()


def test_containers_of_an_account_with_vfs_run_in_an_overlay_store(account: Account) -> None:
    """With vfs, each container would be a copy of its image: 9 s for create, exec and remove, here
    0.3 s.
    """
    before = account.podman("images", "--all", "--no-trunc", "--quiet")
    script = (
        'print(runtime.info.storage, run(sys.argv[1], "cat", "/word"), run(sys.argv[1], "grep", '
        '" / ", "/proc/mounts"))'
    )
    printed = account.printed(script, IMAGE)
    assert printed[0] == "overlay first"
    assert printed[1].split()[0] in ("overlay", "fuse-overlayfs")
    assert account.podman("images", "--all", "--no-trunc", "--quiet") == before, (
        "the user's images are as they were"
    )
    assert account.podman("info", "--format", "{{.Store.GraphDriverName}}") == "vfs"
    assert account.names() == []
    shown = account.hyperrun("doctor", "podman").stdout.decode()
    assert f"containers run in an overlay store of this library, {account.own}" in shown
    assert "podman system reset --force" in shown


@pytest.mark.slow
def test_a_reference_always_names_the_image_of_the_users_store(account: Account) -> None:
    unnamed = account.make_image("unnamed", named=False)
    script = """
        print(run(sys.argv[1], "cat", "/word"), end="")
        print(run(sys.argv[2], "cat", "/word"), end="")
        print("ready", flush=True)
        input()
        print(run(sys.argv[1], "cat", "/word"), end="")
        runtime.images.remove(sys.argv[1])
        try:
            run(sys.argv[1], "true")
        except ImageNotFoundError as error:
            print("not found" if sys.argv[1] in str(error) else error)
    """
    args = [sys.executable, "-c", opened(script), IMAGE, unnamed]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(args, env=account.env, cwd="/", **pipes) as process:  # type: ignore[call-overload]
        assert [process.stdout.readline() for _ in range(3)] == ["first\n", "unnamed\n", "ready\n"]
        second = account.make_image("second")
        printed, _ = process.communicate("\n", timeout=300)
    assert printed.splitlines() == ["second", "not found"]
    own = account.in_own("images", "--no-trunc", "--quiet")
    assert second not in own, "its image was removed"
    assert unnamed in own
    assert "hyperruntime" not in account.podman("images"), "the names for the copies are gone"


@pytest.mark.slow
def test_another_process_finds_a_named_snapshot_in_the_own_store(account: Account) -> None:
    make = """
        with runtime.container(hr.ContainerSpec(image=sys.argv[1])) as container:
            container.exec(["sh", "-c", "echo kept >/word"]).check()
            container.snapshot(name="kept")
    """
    account.printed(make, IMAGE)
    account.make_image("second")
    use = """
        print(run(sys.argv[1], "cat", "/word"), end="")  # copies the new image, removes orphans
        with runtime.container(hr.ContainerSpec(image=sys.argv[1]), base="kept") as container:
            print(container.exec(["cat", "/word"]).stdout.decode(), end="")
        print(runtime.snapshots.find("kept").diff()[-1])
        runtime.snapshots.remove("kept")
        print(runtime.snapshots.list())
    """
    assert account.printed(use, IMAGE) == ["second", "kept", "changed /word", "()"]


@pytest.mark.slow
def test_what_killed_owners_left_is_removed_from_both_stores(account: Account) -> None:
    account.printed('run(sys.argv[1], "true")', IMAGE)
    account.leave()
    both = ["hyperruntime-in-own", "hyperruntime-in-vfs"]
    listed = account.printed("print(*sorted(owned.record.id for owned in runtime.containers()))")
    assert listed == [" ".join(both)]
    assert account.printed("print(*sorted(runtime.prune()))")[0].split()[-2:] == both
    assert account.names() == []
    account.leave()
    account.printed(
        "import subprocess; subprocess.run(runtime._driver.cleanup_args(sys.argv[1]), check=False)",
        f"{LABEL}=left",
    )
    assert account.names() == []


def test_a_run_that_must_use_vfs_says_what_it_costs_and_which_command_corrects_it(
    account: Account,
) -> None:
    """The other reasons for vfs, root's among them, are in the unit tests."""
    account.config.write_text('[storage]\ndriver = "vfs"\n')
    done = account.hyperrun(
        "--runtime", "podman", "--log-json", "exec", "--image", IMAGE, "--", "cat", "/word"
    )
    assert (done.exit_code, done.stdout) == (0, b"first\n"), done.stderr.decode()
    (line,) = [json.loads(text) for text in done.stderr.decode().splitlines() if "vfs" in text]
    assert "2 to 9 s" in line["cost"]
    assert line["why"] == f"{account.config} chooses vfs"
    shown = account.hyperrun("doctor", "podman").stdout.decode()
    for part in line["why"], "2 to 9 s", line["next_step"]:
        assert part in shown
    subprocess.run(["/bin/sh", "-c", line["next_step"].strip("`")], check=True)
    assert account.printed("print(runtime.info.storage)") == ["overlay"], (
        "another choice is another probe"
    )


@pytest.mark.slow
def test_a_container_in_the_own_store_outlives_podmans_pause_process(account: Account) -> None:
    """Without the pause process Podman joins the container; it must not be taken for a stale
    file.
    """
    script = """
        with runtime.container(hr.ContainerSpec(image=sys.argv[1])) as container:
            print("ready", flush=True)
            input()
            print(container.exec(["cat", "/word"]).stdout.decode(), end="")
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    args = [sys.executable, "-c", opened(script), IMAGE]
    with subprocess.Popen(args, env=account.env, cwd="/", **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        account.kill_pause()
        assert account.printed("print(len(runtime.containers()))") == ["1"]
        assert len(account.names()) == 1
        printed, _ = process.communicate("\n", timeout=120)
    assert printed == "first\n"
