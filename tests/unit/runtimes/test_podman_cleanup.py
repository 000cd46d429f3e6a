"""What removes the containers of a dead owner goes on after Podman's failures, and does not hide
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime_podman.driver import PodmanDriver

PODMAN = """#!/bin/sh
echo "$1" >>"$FAKE/log"
left=$(cat "$FAKE/$1.fails")
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) >"$FAKE/$1.fails"
    exit 125
fi
case $1 in
ps) cat "$FAKE/ids" ;;
rm) : >"$FAKE/ids" ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program ``podman`` on PATH that lists two containers, and a ``sleep`` that does not
    wait.
    """
    for name, text in (("podman", PODMAN), ("sleep", "#!/bin/sh\nexit 0\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ids").write_text("one\ntwo\n")
    fail(tmp_path, ps=0, rm=0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE", str(tmp_path))
    return tmp_path


def fail(fake: Path, **times: int) -> None:
    for command, count in times.items():
        (fake / f"{command}.fails").write_text(f"{count}\n")


def clean_up() -> ProcessResult:
    return run_process(PodmanDriver().cleanup_args("a=b"), timeout_s=60)


def test_all_are_removed_and_listed_once_more(fake: Path) -> None:
    assert clean_up().exit_code == 0
    assert (fake / "log").read_text().split() == ["ps", "rm", "ps"]


def test_a_list_that_fails_is_asked_for_again(fake: Path) -> None:
    fail(fake, ps=2)
    assert clean_up().exit_code == 0
    assert (fake / "ids").read_text() == ""


def test_a_removal_that_fails_is_tried_again(fake: Path) -> None:
    fail(fake, rm=3)
    assert clean_up().exit_code == 0
    assert (fake / "ids").read_text() == ""


@pytest.mark.parametrize("command", ["ps", "rm"])
def test_what_always_fails_is_reported_so_that_the_guard_tries_again_later(
    fake: Path, command: str
) -> None:
    fail(fake, **{command: 1000})
    assert clean_up().exit_code != 0
