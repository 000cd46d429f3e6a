"""An account of Podman with a store and directories of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from hyperruntime.host.process import ProcessResult, run_process
from tests.command import cli
from tests.processes import end

IMAGE = "localhost/tiny:latest"
_PLACES = {
    "DATA_HOME": "data",
    "CACHE_HOME": "cache",
    "CONFIG_HOME": "config",
    "RUNTIME_DIR": "run",
}
_CHOICES = ("STORAGE_DRIVER", "STORAGE_OPTS", "CONTAINERS_STORAGE_CONF")


class PodmanAccount:
    """The account; its paths are short, because slirp4netns cannot make its socket in a long one.

    Attributes:
        directory: holds everything of it.
        run: the directory of its running processes.
        config: the file that may choose a storage driver.
        env: the variables of its processes.
    """

    def __init__(self) -> None:
        """Make the directories; nothing chooses a storage driver."""
        self.directory = Path(tempfile.mkdtemp(prefix="hr-"))
        self.run = self.directory / "run"
        self.run.mkdir(mode=0o700)
        self.config = self.directory / "config" / "containers" / "storage.conf"
        self.config.parent.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if name not in _CHOICES}
        places = {f"XDG_{name}": str(self.directory / path) for name, path in _PLACES.items()}
        self.env = {**kept, **places}

    def podman(self, *args: str, program: str = "podman", **more: str) -> str:
        """Run Podman, or a program in its place, which must succeed; return its output."""
        done = run_process([program, *args], env={**self.env, **more}, timeout_s=120, cwd="/")
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def python(self, script: str, *args: str, **more: str) -> ProcessResult:
        """Run a script in another process."""
        words = [sys.executable, "-c", script, *args]
        return run_process(words, env={**self.env, **more}, timeout_s=300, cwd="/")

    def hyperrun(self, *args: str, **more: str) -> ProcessResult:
        """Run a command of ``hyperrun``."""
        return run_process(cli(*args), env={**self.env, **more}, timeout_s=300, cwd="/")

    def make_image(self, word: str, *, named: bool = True) -> str:
        """Make an image of busybox with this word in /word; return its identifier."""
        place = Path(tempfile.mkdtemp(dir=self.run))
        (place / "bin").mkdir()
        shutil.copy(shutil.which("busybox") or "/bin/busybox", place / "bin" / "busybox")
        for name in ("sh", "cat", "dd", "sleep", "mkdir", "mount", "grep", "true"):
            (place / "bin" / name).symlink_to("busybox")
        (place / "word").write_text(f"{word}\n")
        subprocess.run(["tar", "-C", str(place), "-cf", f"{place}.tar", "."], check=True)
        made = self.podman("import", "--quiet", f"{place}.tar", *([IMAGE] if named else []))
        return made.splitlines()[-1].removeprefix("sha256:")

    def pid_files(self, name: str) -> list[Path]:
        """Return the files of this name that hold the number of a process."""
        return list(self.run.rglob(name))

    def kill_pause(self) -> None:
        """Kill the process that holds the namespaces of this Podman."""
        process = psutil.Process(int(self.pid_files("pause.pid")[0].read_text()))
        process.kill()
        psutil.wait_procs([process], timeout=10)

    def kill_all(self) -> None:
        """Kill the pause process and conmon, then what the containers run, as a batch system
        does.
        """
        for file in (*self.pid_files("pause.pid"), *self.pid_files("conmon.pid")):
            try:
                process = psutil.Process(int(file.read_text()))
                every = [process, *process.children(recursive=True)]
            except (psutil.Error, ValueError):
                continue
            end(every)
            psutil.wait_procs(every, timeout=10)

    def remove(self) -> None:
        """Remove everything of this account, after its processes have ended."""
        script = (
            'for d in "$1"/overlay "$1"/*/overlay "$1"/data/*/*/overlay; do '
            'umount --recursive --lazy "$d"; done; chmod -R u+w "$1"; rm -rf "$1"'
        )
        words = ["podman", "unshare", "/bin/sh", "-c", script, "sh", str(self.directory)]
        run_process(words, env={**self.env, "XDG_RUNTIME_DIR": str(self.run)}, timeout_s=60)
        shutil.rmtree(self.directory, ignore_errors=True)

    def migrate(self) -> None:
        """End what Podman keeps running for this account."""
        words = ["podman", "system", "migrate"]
        subprocess.run(words, env=self.env, capture_output=True, timeout=60, check=False)
