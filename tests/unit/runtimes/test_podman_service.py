"""Failures of Podman's API service raise our errors and leave no files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hyperruntime.errors import EngineError, EngineUnavailableError
from hyperruntime.host.process import wait_until
from hyperruntime_podman import PodmanDriver
from hyperruntime_podman.container import remove
from hyperruntime_podman.images import PodmanImages
from hyperruntime_podman.service import PodmanService

SERVICE = f"""#!{sys.executable}
import json, os, socket, sys
if os.environ["HOW"] == "dies":
    sys.exit("Error: no luck")
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[-1].removeprefix("unix://"))
server.listen()
body = json.dumps({{"cause": "boom", "message": "the store is broken", "response": 500}}).encode()
open(sys.argv[0] + ".starts", "a").write("x")
while True:
    client, _ = server.accept()
    if os.environ["HOW"] == "works" and client.recv(65536):
        client.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 2\\r\\n\\r\\n[]")
    if os.environ["HOW"] == "answers" and client.recv(65536):
        client.sendall(b"HTTP/1.1 500 Oh\\r\\nContent-Type: application/json\\r\\nConnection: close\\r\\n")
        client.sendall(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    client.close()
"""


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("answers", EngineError, "containers cannot be listed: .*the store is broken"),
        ("hangs up", EngineError, "containers cannot be listed: "),
        ("dies", EngineUnavailableError, "does not start: Error: no luck"),
        ("is not there", EngineUnavailableError, "no `podman` on PATH"),
    ],
)
def test_a_failure_of_the_service_raises_a_clear_error_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, error: type[Exception], words: str
) -> None:
    program = tmp_path / "podman"
    program.write_text(SERVICE)
    program.chmod(0o755 if how != "is not there" else 0o644)
    monkeypatch.setenv("PATH", str(tmp_path) if how != "is not there" else str(tmp_path / "none"))
    monkeypatch.setenv("HOW", how)
    (tmp_path / "private").mkdir()
    driver = PodmanDriver()
    driver.open(str(tmp_path / "private"))
    try:
        with pytest.raises(error, match=words):
            driver.containers()
    finally:
        driver.close()
    made = (tmp_path / "private" / "also").read_text().splitlines()
    assert made
    assert not [path for path in made if os.path.exists(path)]


def make_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> PodmanService:
    program = tmp_path / "podman"
    program.write_text(SERVICE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOW", how)
    return PodmanService(lambda: tempfile.mkdtemp(prefix="h-", dir="/tmp"))


def test_a_service_that_was_idle_or_died_is_replaced_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime_podman.service._IDLE_S", 0.2)
    service, starts = make_service(tmp_path, monkeypatch, "works"), tmp_path / "podman.starts"
    try:
        for number in (1, 2):
            assert service.call("x", lambda client: client.containers.list()) == []
            assert starts.read_text() == "x" * number
            assert wait_until(lambda: service._process is None, 120)
        assert service.call("x", end_of(service)) == []
        assert service.call("x", lambda client: client.containers.list()) == []
        assert starts.read_text() == "xxxx"
    finally:
        service.close()


def end_of(service: PodmanService) -> Callable[[Any], Any]:
    """Return a function that lists containers and then kills the service, as a fault of Podman
    would.
    """

    def ask(client: Any) -> Any:
        assert service._process is not None
        try:
            return client.containers.list()
        finally:
            os.kill(service._process.pid, signal.SIGKILL)
            service._process.wait()

    return ask


OWNER = """
import os, signal, sys, time
from hyperruntime_podman.service import PodmanService
service = PodmanService(lambda: sys.argv[1])
service.call("x", lambda client: client.containers.list())
if os.fork() == 0:
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
print(service._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_service_ends_with_a_killed_owner_that_has_a_forked_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_service(tmp_path, monkeypatch, "works").close()
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as directory:
        owner = subprocess.run([sys.executable, "-c", OWNER, directory], stdout=subprocess.PIPE)
    assert owner.returncode == -signal.SIGKILL
    assert wait_until(lambda: not is_running(int(owner.stdout)), 120)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_failed_connection_does_not_stop_the_service_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(tmp_path, monkeypatch, "works")

    def no_more_files(connection: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def ask(client: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr("podman.api.uds.UDSConnection.connect", no_more_files)
            with pytest.raises(EngineError, match="Too many open files"):
                service.call("y", lambda client: client.containers.list())
        return client.containers.list()

    try:
        assert service.call("x", ask) == []
        assert (tmp_path / "podman.starts").read_text() == "x"
    finally:
        service.close()


@pytest.mark.parametrize(
    ("failures", "words"), [(3, None), (9, "image not known"), (1, "the store is broken")]
)
def test_images_can_be_listed_while_one_is_removed(failures: int, words: str | None) -> None:
    """Podman's list then fails because of the removed image and is retried; any other failure is
    raised at once.
    """
    asked: list[str] = []

    class Service:
        def call(self, what: str, function: Callable[[Any], Any]) -> tuple[()]:
            asked.append(what)
            if len(asked) <= failures:
                raise EngineError(f"{what}: {words or 'reading image: image not known'}")
            return ()

    images = PodmanImages(cast(Any, Service()), list)
    if words is None:
        assert images.list() == ()
        assert len(asked) == failures + 1
    else:
        with pytest.raises(EngineError, match=words):
            images.list()
        assert len(asked) == (5 if "not known" in words else 1)


@pytest.mark.parametrize(
    ("failures", "how"), [(2, "exit 125"), (99, "exit 125"), (2, "kill -TERM $$"), (2, "exit 0")]
)
def test_a_container_whose_removal_fails_for_a_while_is_removed_with_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, how: str
) -> None:
    error = failures == 99
    program, asked = tmp_path / "podman", tmp_path / "asked"
    # podman-rm(1) prints the name; podman-container-exists(1) exits with 0 if it is there
    program.write_text(
        f"#!/bin/sh\n[ $1 = rm ] || exit 0\necho >>{asked}\n[ $(wc -l <{asked}) -gt {failures} "
        f"] && echo c && exit\n[ '{how}' = 'exit 125' ] && echo 'Error: given PIDs did not die "
        f"within timeout' >&2\n{how}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(
        "hyperruntime_podman.container.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    )
    if error:
        with pytest.raises(EngineError, match=r"container c could not be removed: .*did not die"):
            remove("c")
    else:
        remove("c")
        assert asked.read_text().count("\n") == failures + 1
    assert now == 1000.0 + (10.5 if error else 0.5 * failures)
