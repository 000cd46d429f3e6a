"""Programs on the host: their output as it comes, and what of it stands in an error."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hyperruntime.host.process import last_line, run_process, stream_process, wait_until


def test_an_interrupted_program_can_still_print_while_it_cleans_up(tmp_path: Path) -> None:
    told, cleaned = tmp_path / "told", tmp_path / "cleaned"
    script = (
        f"echo step; until [ -e '{told}' ]; do sleep 0.01; done; head -c 300000 /dev/zero && "
        f"echo > '{cleaned}'"
    )

    def interrupt(line: str) -> None:
        assert line == "step"
        raise KeyboardInterrupt

    def before_kill(_pid: int) -> None:
        told.touch()
        assert wait_until(cleaned.exists, 120)

    with pytest.raises(KeyboardInterrupt):
        stream_process(["sh", "-c", script], on_line=interrupt, before_kill=before_kill)
    assert cleaned.exists()


def test_a_program_that_ran_too_long_is_not_waited_for_by_a_child_that_left_its_session(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "end")
    script = f"setsid sh -c 'touch {tmp_path}/begun; read x < {tmp_path}/end' & wait"
    try:
        with pytest.raises(TimeoutError, match="ran past 1 s"):
            run_process(["sh", "-c", script], timeout_s=1)  # its child still writes to the pipes
    finally:
        if wait_until((tmp_path / "begun").exists, 60):
            (tmp_path / "end").write_text("\n")


def test_children_that_outlive_a_program_are_ended_with_it(tmp_path: Path) -> None:
    """A failed `unshare --map-auto` leaves a child that waits for ever."""
    done = run_process(["sh", "-c", f"sleep 900 & echo $! >{tmp_path}/pid; echo said; exit 3"])
    assert (done.stdout, done.exit_code) == (b"said\n", 3)
    child = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not psutil.pid_exists(child), 120)


def test_the_last_line_of_a_crashed_go_program_is_the_one_before_its_stack() -> None:
    stack = (
        "\n\nruntime stack:\nruntime.throw({0x16fb03f?, 0x7ffd?})\n\truntime/panic.go:1047 +0x5d\n"
    )
    assert (
        last_line("level=warning\nfatal error: failed to reserve memory" + stack)
        == "fatal error: failed to reserve memory"
    )
    assert last_line("\x1b[91mERROR  : no namespace\n\x1b[0m") == "ERROR  : no namespace"
    assert last_line("panic: no\n\ngoroutine 1 [running]:\nmain.main()") == "panic: no"
    abort = (
        "runtime/cgo: pthread_create failed: no room\nSIGABRT: abort\n\ngoroutine 0 "
        "[idle]:\nmain()\n\ngs  0x0\n"
    )
    assert last_line(abort) == "runtime/cgo: pthread_create failed: no room"
    assert (
        last_line("fatal error: not the last word\nError: this one is\n", "Error: ")
        == "this one is"
    )
