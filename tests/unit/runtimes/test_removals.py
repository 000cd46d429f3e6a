"""Removals and lists of Podman and Docker that fail for a while are repeated, also after the death
of an owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.driver import ContainerRecord
from hyperruntime.errors import EngineError
from hyperruntime.host import engine_driver
from hyperruntime.host.engine_driver import remove_labelled
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.layers.snapshots.kept_images import SNAPSHOTS
from hyperruntime_docker import container as docker
from hyperruntime_podman import container as podman
from hyperruntime_podman.driver import PodmanDriver
from hyperruntime_podman.images import PodmanImages

# podman-rm(1) prints the name; podman-container-exists(1) exits with 0 if it is there. A command
# fails as often as its file says, in the way that the file `how` says.
# Its list of images has one snapshot.
PODMAN = """#!/bin/sh
cd "${0%/*}" && echo "$1" >>log
left=$(cat "$1.fails" 2>/dev/null || echo 0)
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) >"$1.fails"
    echo "Error: given PIDs did not die within timeout" >&2
    eval "$(cat how)"
fi
case $1 in
ps) cat ids ;;
rm) : >ids; echo c ;;
images) cat images ;;
rmi) : >images ;;
esac
"""


class Fake:
    """The program ``podman``, with two containers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # `sleep` does not wait
        for name, text in (("podman", PODMAN), ("sleep", "#!/bin/sh\nexit 0\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "ids").write_text("one\ntwo\n")
        (folder / "images").write_text(f"{SNAPSHOTS}:1\n")

    def fail(self, times: Mapping[str, int], how: str = "exit 125") -> None:
        (self._folder / "how").write_text(how)
        for command, count in times.items():
            (self._folder / f"{command}.fails").write_text(f"{count}\n")

    @property
    def calls(self) -> list[str]:
        """The commands; an ordinary user also asks for the place of the store."""
        return [one for one in (self._folder / "log").read_text().split() if one != "info"]

    @property
    def left(self) -> str:
        return "".join((self._folder / name).read_text() for name in ("ids", "images"))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Fake(tmp_path)


@pytest.mark.parametrize("fails", [{}, {"ps": 2}, {"rm": 3}, {"images": 1}, {"rmi": 2}])
def test_the_guard_removes_all_containers_lists_once_more_and_removes_snapshots(
    fake: Fake, fails: dict[str, int]
) -> None:
    fake.fail(fails)
    assert run_process(PodmanDriver().cleanup_args("a=b"), timeout_s=60).exit_code == 0
    assert fake.left == ""
    assert fake.calls[-3:] == ["ps", "images", "rmi"]
    assert fake.calls.index("rmi") > fake.calls.index("rm")


@pytest.mark.parametrize("command", ["ps", "rm", "images", "rmi"])
def test_what_always_fails_is_reported_so_that_the_guard_tries_again_later(
    fake: Fake, command: str
) -> None:
    fake.fail({command: 1000})
    assert run_process(PodmanDriver().cleanup_args("a=b"), timeout_s=60).exit_code != 0


@pytest.mark.parametrize(
    ("failures", "how"), [(2, "exit 125"), (99, "exit 125"), (2, "kill -TERM $$"), (2, "exit 0")]
)
def test_a_container_whose_removal_fails_for_a_while_is_removed_with_retries(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, failures: int, how: str
) -> None:
    fake.fail({"rm": failures}, how)
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(podman, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    if failures == 99:
        with pytest.raises(EngineError, match=r"container c could not be removed: .*did not die"):
            podman.remove("c")
    else:
        podman.remove("c")
        assert fake.calls.count("rm") == failures + 1
    assert now == 1000.0 + (10.5 if failures == 99 else 0.5 * failures)


@pytest.mark.parametrize(
    ("failures", "words"), [(3, None), (9, "image not known"), (1, "the store is broken")]
)
def test_images_can_be_listed_while_one_is_removed(
    monkeypatch: pytest.MonkeyPatch, failures: int, words: str | None
) -> None:
    """Podman's list then fails because of the removed image and is retried; any other failure is
    raised at once.
    """
    asked: list[str] = []

    def ask(what: str, *words_of_podman: str) -> ProcessResult:
        asked.append(what)
        if len(asked) <= failures:
            raise EngineError(f"{what}: {words or 'reading image: image not known'}")
        return ProcessResult(args=words_of_podman, exit_code=0, stdout=b"[]", stderr=b"")

    monkeypatch.setattr("hyperruntime_podman.images.ask_podman", ask)
    monkeypatch.setattr("hyperruntime_podman.images.time", SimpleNamespace(sleep=lambda _: None))
    images = PodmanImages(list)
    if words is None:
        assert images.list() == ()
    else:
        with pytest.raises(EngineError, match=words):
            images.list()
    assert len(asked) == {3: 4, 9: 5, 1: 1}[failures]


class Daemon:
    """Answers 409 to so many removals, as Docker's daemon does while another removal runs; the
    container stays meanwhile.
    """

    def __init__(self, busy: int) -> None:
        self.busy, self.asked = busy, 0

    def remove_container(self, name: str, **_: object) -> None:
        from docker.errors import APIError

        self.asked += 1
        if self.asked <= self.busy:
            response: Any = SimpleNamespace(status_code=409, url="", reason="Conflict", text="")
            raise APIError("409", response, f"removal of container {name} is already in progress")

    def inspect_container(self, name: str) -> None:
        """The container is still there."""


@pytest.mark.parametrize("busy", [3, 10**9])
def test_dockers_removal_is_tried_again_while_another_one_in_progress_does_not_end(
    monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    pytest.importorskip("docker")
    monkeypatch.setattr(docker, "_REMOVAL_AGAIN_S", 0.0)
    monkeypatch.setattr(docker, "limit_s", lambda engine, verb: 60.0 if busy == 3 else 0.1)
    daemon = Daemon(busy)
    engine: Any = SimpleNamespace(api=lambda: daemon)
    if busy == 3:
        docker.remove(engine, "c")
        assert daemon.asked == 4
    else:
        with pytest.raises(EngineError, match="in progress"):
            docker.remove(engine, "c")


DEAD = {"owner": "dead"}


class Listed:
    """Lists containers as scripted, one list per call; the last one for ever."""

    lists: Sequence[Sequence[str]] = ()
    stuck: Sequence[str] = ()
    removed: list[str]

    def containers(self) -> tuple[ContainerRecord, ...]:
        names, Listed.lists = Listed.lists[0], Listed.lists[1:] or Listed.lists
        return tuple(
            ContainerRecord(
                id=name,
                image="i",
                state="elsewhere" if name == "far" else "running",
                created=0.0,
                labels={"owner": "alive"} if name == "other" else DEAD,
            )
            for name in names
        )

    def remove_container(self, name: str) -> None:
        Listed.removed.append(name)
        if name in Listed.stuck:
            raise EngineError(f"{name} does not end")


def remove_dead(
    monkeypatch: pytest.MonkeyPatch, *lists: Sequence[str], empty: int = 0, stuck: str = ""
) -> list[str]:
    """Return the removals."""
    Listed.lists, Listed.stuck, Listed.removed = lists, stuck.split(), []
    monkeypatch.setattr(engine_driver, "time", SimpleNamespace(sleep=lambda _: None))
    remove_labelled(Listed.__module__, "Listed", "owner=dead", str(empty))
    return Listed.removed


def test_all_with_the_label_on_this_machine_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remove_dead(monkeypatch, ["a", "other", "far", "b"]) == ["a", "b"]


def test_a_list_that_is_empty_once_may_fill_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may create a container that the owner requested before it died."""
    assert remove_dead(monkeypatch, [], ["a"], [], [], ["b"], empty=2) == ["a"]


@pytest.mark.parametrize(
    ("stuck", "words"), [("a", "a does not end"), ("", "ever more containers")]
)
def test_what_is_left_is_an_error_after_the_others_were_removed(
    monkeypatch: pytest.MonkeyPatch, stuck: str, words: str
) -> None:
    with pytest.raises(SystemExit, match=words):
        remove_dead(monkeypatch, ["a", "b"], empty=2, stuck=stuck)
    assert Listed.removed == ["a", "b"] * 5
