"""If the store of rootless Podman has the driver vfs, containers run in an overlay store of this
library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hyperruntime.host.owner import LABEL, OwnerIdentity
from hyperruntime.host.process import ProcessResult, run_process, wait_until
from tests.params import first_quick
from tests.processes import end

pytestmark = pytest.mark.engine

IMAGE = "localhost/tiny:latest"
OPEN = """
    import json, sys
    import hyperruntime as hr
    from hyperruntime.errors import ImageNotFoundError
    with hr.open_runtime("podman") as runtime:
        def run(image, *args):
            with runtime.container(hr.ContainerSpec(image=image)) as container:
                return container.exec(args).stdout.decode()
"""


class Account:
    """A new account on Debian 12: no file chooses a storage driver, and the store was begun with
    vfs.
    """

    def __init__(self, directory: Path) -> None:
        self.run_root = directory / "run"
        self.run_root.mkdir(mode=0o700)
        self.config = directory / "config" / "containers" / "storage.conf"
        self.config.parent.mkdir(parents=True)
        self.root = directory / "data" / "containers" / "storage"
        self.own = self.root / "hyperruntime"
        names = ("DATA_HOME", "CACHE_HOME", "CONFIG_HOME", "RUNTIME_DIR")
        places = dict(zip(names, ("data", "cache", "config", "run"), strict=True))
        foreign = ("STORAGE_DRIVER", "STORAGE_OPTS", "CONTAINERS_STORAGE_CONF")
        kept = {name: value for name, value in os.environ.items() if name not in foreign}
        self.env = {
            **kept,
            **{f"XDG_{name}": str(directory / path) for name, path in places.items()},
        }
        assert self.podman("info", "--format", "{{.Store.GraphRoot}}", STORAGE_DRIVER="vfs") == str(
            self.root
        )
        self.make_image("first")

    def podman(self, *args: str, **more: str) -> str:
        """Run Podman, which must succeed; return its output."""
        done = run_process(["podman", *args], env={**self.env, **more}, timeout_s=120, cwd="/")
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def in_own(self, *args: str) -> str:
        """Run Podman with the store of this library."""
        run = self.run_root / "containers" / "hyperruntime"
        return self.podman(
            "--root", str(self.own), "--runroot", str(run), "--storage-driver", "overlay", *args
        )

    def make_image(self, word: str, *, named: bool = True) -> str:
        """Make an image of busybox with this word in /word; return its identifier."""
        place = Path(tempfile.mkdtemp(dir=self.run_root))
        (place / "bin").mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", place / "bin" / "busybox")
        for name in ("sh", "cat", "sleep", "mkdir", "mount", "grep", "true"):
            (place / "bin" / name).symlink_to("busybox")
        (place / "word").write_text(f"{word}\n")
        subprocess.run(["tar", "-C", str(place), "-cf", f"{place}.tar", "."], check=True)
        made = self.podman("import", "--quiet", f"{place}.tar", *([IMAGE] if named else []))
        return made.splitlines()[-1].removeprefix("sha256:")

    def python(self, script: str, *args: str, **more: str) -> ProcessResult:
        """Run a script in another process, with the start ``OPEN``."""
        lines = textwrap.dedent(OPEN) + textwrap.indent(textwrap.dedent(script), "    ")
        return run_process(
            [sys.executable, "-c", lines, *args], env={**self.env, **more}, timeout_s=300, cwd="/"
        )

    def printed(self, script: str, *args: str, **more: str) -> list[str]:
        """Return the lines that a script prints, which must succeed."""
        done = self.python(script, *args, **more)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode().splitlines()

    def hyperrun(self, *args: str, **more: str) -> ProcessResult:
        words = [sys.executable, "-m", "hyperruntime.cli", *args]
        return run_process(words, env={**self.env, **more}, timeout_s=300, cwd="/")

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

    def kill_all(self) -> None:
        """Kill the pause process and conmon, then what the containers run, as a batch system
        does.
        """
        for file in (*self.run_root.rglob("pause.pid"), *self.run_root.rglob("conmon.pid")):
            try:
                process = psutil.Process(int(file.read_text()))
                every = [process, *process.children(recursive=True)]
            except (psutil.Error, ValueError):
                continue
            end(every)
            psutil.wait_procs(every, timeout=10)


@pytest.fixture
def account() -> Iterator[Account]:
    """An account with a store and directories of its own; the paths are short, as slirp4netns needs
    it.
    """
    assert os.geteuid() != 0, "root has one store; scripts/test runs this as the ordinary user"
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    made = Account(directory)
    yield made
    subprocess.run(
        ["podman", "system", "migrate"], env=made.env, capture_output=True, timeout=60, check=False
    )
    made.podman("system", "reset", "--force")
    made.kill_all()
    shutil.rmtree(directory)


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
    lines = textwrap.dedent(OPEN) + textwrap.indent(textwrap.dedent(script), "    ")
    args = [sys.executable, "-c", lines, IMAGE, unnamed]
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


@pytest.mark.slow
def test_a_killed_owner_leaves_no_container_in_the_own_store(account: Account) -> None:
    script = """
        import os, signal
        container = runtime.container(hr.ContainerSpec(image=sys.argv[1]))
        print(runtime._owner.private_dir, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = account.python(script, IMAGE)
    assert killed.exit_code == -9
    private = killed.stdout.decode().strip()
    assert wait_until(lambda: not os.path.exists(private), 120), (
        "the guard removes it when it has done all else"
    )
    assert account.names() == []


@pytest.mark.parametrize("where", first_quick("variable", "file", "broken"))
def test_a_run_that_must_use_vfs_says_what_it_costs_and_which_command_corrects_it(
    account: Account, where: str
) -> None:
    more = {"STORAGE_DRIVER": "vfs"} if where == "variable" else {}
    if where == "file":
        account.config.write_text('[storage]\ndriver = "vfs"\n')
    if where == "broken":
        account.own.write_text("no directory")
    step, why = {
        "variable": ("unset STORAGE_DRIVER", "STORAGE_DRIVER chooses vfs"),
        "file": (
            f"sed -i '/^ *driver *=/s/vfs/overlay/' {account.config}",
            f"{account.config} chooses vfs",
        ),
        "broken": ("", "an overlay store does not work: "),
    }[where]
    done = account.hyperrun(
        "--runtime", "podman", "--log-json", "exec", "--image", IMAGE, "--", "cat", "/word", **more
    )
    assert (done.exit_code, done.stdout) == (0, b"first\n"), done.stderr.decode()
    (line,) = [json.loads(text) for text in done.stderr.decode().splitlines() if "vfs" in text]
    assert "2 to 9 s" in line["cost"]
    assert why in line["why"]
    assert step in line["next_step"]
    shown = account.hyperrun("doctor", "podman", **more).stdout.decode()
    assert why in shown
    assert "2 to 9 s" in shown
    assert line["next_step"] in shown
    if where == "file":  # the command corrects it
        subprocess.run(["/bin/sh", "-c", line["next_step"].strip("`")], check=True)
    if where != "broken":
        assert account.printed("print(runtime.info.storage)") == ["overlay"], (
            "another choice is another probe"
        )


@pytest.mark.slow
def test_the_choice_of_the_store_is_remembered(account: Account) -> None:
    account.printed("print(runtime.info.storage)")
    (file,) = (Path(account.env["XDG_CACHE_HOME"]) / "hyperruntime").glob("podman-*.json")
    stored = json.loads(file.read_text())
    assert (stored["storage"], stored["settings"]["root"]) == ("vfs", str(account.own))
    version = file.stat().st_mtime_ns
    assert account.printed("print(runtime.info.storage)") == ["overlay"]
    assert file.stat().st_mtime_ns == version, "the second process did not probe"
    assert account.podman("images", "--format", "{{.Repository}}").split() == ["localhost/tiny"]


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
    lines = textwrap.dedent(OPEN) + textwrap.indent(textwrap.dedent(script), "    ")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    args = [sys.executable, "-c", lines, IMAGE]
    with subprocess.Popen(args, env=account.env, cwd="/", **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        pause = psutil.Process(int(next(account.run_root.rglob("pause.pid")).read_text()))
        pause.kill()
        psutil.wait_procs([pause], timeout=10)
        assert account.printed("print(len(runtime.containers()))") == ["1"]
        assert len(account.names()) == 1
        printed, _ = process.communicate("\n", timeout=120)
    assert printed == "first\n"


@pytest.mark.slow
def test_the_own_store_works_after_all_processes_of_the_user_were_killed(account: Account) -> None:
    account.printed('run(sys.argv[1], "true")', IMAGE)
    account.leave()
    account.kill_all()
    assert (
        account.printed('print(run(sys.argv[1], "cat", "/word"), *sorted(runtime.prune()))', IMAGE)[
            0
        ]
        == "first"
    )
    assert account.names() == []
